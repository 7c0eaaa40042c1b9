"""``chairlift top``: the cluster's figures in a terminal, second by second.

Owns how they look there. They come from ``/dashboard/figures``, which any router of the service
answers; where it does not, the last ones stay, with the reason above them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chairlift.cluster.config import client_headers
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.chat import printable
from chairlift.evaluation.openai_stream import ServerFault, api_base, read_error, unusable

__all__ = ["add_arguments", "run"]

WINDOWS = ("10s", "1m", "5m", "1h")
PERIOD_S = 1.0
TIMEOUT_S = 5.0
PIPE_WIDTH = 120
ENDS = ("finished", "cancelled", "rejected", "failed", "open", "lost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift top``."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument(
        "--window", choices=WINDOWS, default="1m", help="of the figures (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print them once, as plain text")


def run(arguments: argparse.Namespace) -> int:
    """Show figures until Ctrl-C.

    Returns:
        0, or 1 when there are no figures to begin with.

    Raises:
        ConfigError: the address is none.
    """
    try:
        base = api_base(arguments.url).removesuffix("/v1")
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from None
    once = arguments.once or not sys.stdout.isatty()
    try:
        asyncio.run(_show(base, arguments.window, once=once))
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        print(f"chairlift top: {printable(unusable(base, error))}", file=sys.stderr)
        return 1
    return 0


async def _show(base: str, window: str, *, once: bool) -> None:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(headers=client_headers(), timeout=timeout) as session:
        figures = await _ask(session, base)
        if once:
            console = Console(width=PIPE_WIDTH, color_system=None, highlight=False)
            console.print(_screen(figures, window, base))
            return
        with Live(_screen(figures, window, base), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(PERIOD_S)
                try:
                    figures, fault = await _ask(session, base), ""
                except (aiohttp.ClientError, OSError, ServerFault) as error:
                    fault = printable(unusable(base, error))
                live.update(_screen(figures, window, base, fault), refresh=True)


async def _ask(session: aiohttp.ClientSession, base: str) -> dict[str, Any]:
    """Raises ServerFault, aiohttp.ClientError, OSError."""
    async with session.get(f"{base}/dashboard/figures") as response:
        if response.status == 404:
            raise ServerFault("http_404", "it has no /dashboard; is it Chairlift?")
        if response.status != 200:
            raise await read_error(response)
        try:
            figures: dict[str, Any] = orjson.loads(await response.read())
            figures["windows"], figures["totals"]
        except (ValueError, LookupError, TypeError):
            raise ServerFault("bad_answer", "its /dashboard/figures holds no figures") from None
    return figures


def _screen(figures: Mapping[str, Any], window: str, base: str, fault: str = "") -> Group:
    part = figures["windows"][window]
    models = printable(", ".join(figures["models"]))
    head = Text(f"{models} at {base} · routers: {figures['routers']} · last {window}", style="bold")
    lines = [head, *([Text(f"OLD: {fault}", style="bold red")] if fault else [])]
    return Group(
        *lines,
        _summary(figures, part),
        _replicas(figures["replicas"]),
        _tenants(figures["queues"], part),
        _totals(figures["totals"]),
    )


def _summary(figures: Mapping[str, Any], part: Mapping[str, Any]) -> Table:
    every, fair = part["all"], part["fairness"]
    rows = (
        (
            f"{_number(every['requests_per_s'], 2)} requests/s",
            f"{_number(every['tokens_per_s'], 1)} tokens/s",
            f"goodput {_share(every['goodput'])}",
            f"on time {_share(every['on_time'])}",
            f"oldest waiting {_seconds(figures['oldest_waiting_s'])}",
        ),
        (
            f"Jain {_number(fair['jain'], 3)}",
            f"gap {_number(fair['gap'])} of {_number(fair['gap_bound'])}",
            f"slowdown ratio {_number(fair['slowdown_ratio'], 2)}",
            f"cached {_share(every['cached_share'])}",
            f"cost per met {_number(part['cost_per_met'], 6)}",
        ),
    )
    table = Table.grid(padding=(0, 3))
    for row in rows:
        table.add_row(*row)
    latencies = _table("latency", "p50", "p95", "p99", "target")
    targets = figures["targets"]
    for name, key, target in (
        ("first token", "ttft_s", targets["first_token_s"]),
        ("between tokens", "inter_token_s", targets["per_token_s"]),
        ("whole request", "duration_s", None),
    ):
        values = (every[key][each] for each in ("p50", "p95", "p99"))
        latencies.add_row(name, *map(_seconds, (*values, target)))
    outer = Table.grid()
    outer.add_row(table)
    outer.add_row(latencies)
    return outer


def _replicas(replicas: Mapping[str, Any]) -> Table:
    table = _table("replica", "health", "age", "running", "seats", "waiting", "KV", "preempted")
    for name, each in replicas.items():
        health = "draining" if each["draining"] else "live" if each["live"] else "NOT LIVE"
        counts = (_number(each[key]) for key in ("running", "seats", "waiting"))
        kv, preempted = _share(each["kv_use"]), _number(each["preemptions"])
        table.add_row(_name(name), health, _seconds(each["age_s"]), *counts, kv, preempted)
    return table


def _tenants(queues: Mapping[str, Any], part: Mapping[str, Any]) -> Table:
    table = _table(
        *("tenant", "weight", "service", "tokens/s", "ttft p99"),
        *("slowdown", "refused", "queued", "oldest"),
    )
    fair = part["fairness"]
    for name in sorted(part["tenants"].keys() | queues.keys()):
        tally, queue = part["tenants"].get(name), queues.get(name)
        table.add_row(
            _name(name),
            _number(fair["weights"].get(name), 1),
            _share(fair["service_share"].get(name)),
            _number(tally and tally["tokens_per_s"], 1),
            _seconds(tally and tally["ttft_s"]["p99"]),
            _number(fair["slowdown_p99"].get(name), 2),
            _share(fair["refused"].get(name)),
            _number(queue["queued"] if queue else 0),
            _seconds(queue and queue["oldest_s"]),
        )
    return table


def _totals(totals: Mapping[str, Any]) -> Text:
    ends = " + ".join(f"{_number(totals[end])} {end}" for end in ENDS)
    verdict = {True: "adds up", False: "DOES NOT ADD UP", None: "not known whether it adds up"}
    return Text(f"\n{_number(totals['started'])} started = {ends}: {verdict[totals['balanced']]}")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"\n{first}", overflow="ellipsis", max_width=32, no_wrap=True)
    for name in others:
        table.add_column(f"\n{name}", justify="right", no_wrap=True)
    return table


def _name(text: str) -> Text:
    """As it is: neither markup nor control characters mean anything."""
    return Text(printable(text).replace("\n", " "))


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"
