"""``chairlift top``: the cluster's figures in a terminal, second by second.

Owns how they look there. They come from ``/dashboard/figures``, which any router of the service
answers; where it does not, the last ones stay, with the reason above them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import orjson
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chairlift.cluster.guard_state import Mode
from chairlift.deployments.chat import printable
from chairlift.evaluation.openai_stream import ServerFault, read_error, unusable
from chairlift.evaluation.target_server import Server, add_server_flags, named_server

__all__ = ["add_arguments", "run"]

WINDOWS = ("10s", "1m", "5m", "1h")
PERIOD_S = 1.0
TIMEOUT_S = 5.0
PIPE_WIDTH = 120
SHOWN = 5
"""Moves of the Guard, and failures; the newest ones."""
ENDLESS = 10_000
FEWEST_COLUMNS = 3
NARROWEST_NAME = 12
ENDS = ("finished", "cancelled", "rejected", "failed", "open", "lost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift top``."""
    add_server_flags(parser)
    parser.add_argument(
        "--window", choices=WINDOWS, default="1m", help="of the figures (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print them once, as plain text")


def run(arguments: argparse.Namespace) -> int:
    """Show figures until Ctrl-C.

    Returns:
        0, or 1 when there are no figures to begin with.

    Raises:
        ConfigError: the flags name no server.
    """
    server = named_server(arguments)
    once = arguments.once or not sys.stdout.isatty()
    try:
        asyncio.run(_show(server, arguments.window, once=once))
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        print(f"chairlift top: {printable(unusable(server.root, error))}", file=sys.stderr)
        return 1
    return 0


async def _show(server: Server, window: str, *, once: bool) -> None:
    base = server.root
    async with server.session(TIMEOUT_S) as session:
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
        *_guard(figures.get("guard"), figures["at"]),
        *_autoscaling(figures.get("autoscaling"), figures["at"]),
        _replicas(figures["replicas"]),
        _tenants(figures["queues"], part),
        _totals(figures["totals"]),
        *_failures(figures),
    )


def _summary(figures: Mapping[str, Any], part: Mapping[str, Any]) -> Group:
    every, fair = part["all"], part["fairness"]
    facts = (
        f"{_number(every['requests_per_s'], 2)} requests/s",
        f"{_number(every['tokens_per_s'], 1)} tokens/s",
        f"goodput {_share(every['goodput'])}",
        f"on time {_share(every['on_time'])}",
        f"oldest waiting {_seconds(figures['oldest_waiting_s'])}",
        f"Jain {_number(fair['jain'], 3)}",
        f"gap {_number(fair['gap'])} of {_number(fair['gap_bound'])}",
        f"slowdown ratio {_number(fair['slowdown_ratio'], 2)}",
        f"cached {_share(every['cached_share'])}",
        f"cost per met {_number(part['cost_per_met'], 6)}",
    )
    latencies = _table("latency", "p50", "p95", "p99", "target")
    targets = figures["targets"]
    for name, key, target in (
        ("first token", "ttft_s", targets["first_token_s"]),
        ("between tokens", "inter_token_s", targets["per_token_s"]),
        ("whole request", "duration_s", None),
    ):
        values = (every[key][each] for each in ("p50", "p95", "p99"))
        latencies.add_row(name, *map(_seconds, (*values, target)))
    return Group(Columns(facts, padding=(0, 3)), latencies)


def _guard(guard: Mapping[str, Any] | None, now: float) -> Iterator[RenderableType]:
    """Where it stands, the signals because of which, and what it did last."""
    if guard is None or guard["mode"] == Mode.OFF:
        yield Text(f"\nGuard: {'not known' if guard is None else 'off'}")
        return
    stands = [f"Guard: {guard['mode']}", f"rung {guard['rung_number']} {guard['rung']}"]
    if guard["since"] is not None:
        stands.append(f"for {_age(now - guard['since'])}")
    if guard["held_by"] is not None:
        stands.append(f"held by {guard['held_by']}")
    if guard["waiting_for"] is not None:
        stands.append(f"WAITS FOR A WORD ON {guard['waiting_for']}")
    if guard["frozen"]:
        stands.append("FROZEN: telemetry contradicts itself")
    yield Text("\n").append(_name(" · ".join(stands)))
    active = {name: each for name, each in guard["signals"].items() if each["active"]}
    if active:
        table = _table("signal", "value", "threshold", "owner", "where")
        for name, each in active.items():
            measured = (_number(each[key], 3) for key in ("value", "threshold"))
            table.add_row(_name(name), *measured, _name(each["owner"]), _name(each["where"]))
        yield table
    if guard["moves"]:
        yield Text("\nlast moves", style="dim")
        for move in reversed(guard["moves"][-SHOWN:]):
            yield _name(f"{_age(now - move['at'])} ago: {move['text']}")


def _autoscaling(scaling: Mapping[str, Any] | None, now: float) -> Iterator[RenderableType]:
    """How many replicas there are to be, why, and the last steps; nothing where it is off."""
    if scaling is None:
        return
    number = f"{scaling['ready']} of {scaling['desired']} ({scaling['min']} to {scaling['max']})"
    yield Text("\n").append(_name(f"Replicas: {number} · {scaling['cause']}: {scaling['reason']}"))
    for step in reversed(scaling["steps"][-SHOWN:]):
        change = f"{step['before']} → {step['after']}"
        yield _name(f"{_age(now - step['at'])} ago: {change}, {step['cause']}: {step['reason']}")


def _replicas(replicas: Mapping[str, Any]) -> Table:
    table = _table(
        *("replica", "health", "age", "running", "seats", "waiting"),
        *("KV", "recomputed", "preempted"),
    )
    for name, each in replicas.items():
        health = "draining" if each["draining"] else "live" if each["live"] else "NOT LIVE"
        counts = (_number(each[key]) for key in ("running", "seats", "waiting"))
        shares = (_share(each[key]) for key in ("kv_use", "recomputed_share"))
        preempted = _number(each["preemptions"])
        table.add_row(_name(name), health, _seconds(each["age_s"]), *counts, *shares, preempted)
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


def _failures(figures: Mapping[str, Any]) -> Iterator[Text]:
    """How many of each kind, and the newest ones."""
    reasons = figures["failure_reasons"]
    if reasons:
        kinds = " · ".join(f"{reason} {_number(number)}" for reason, number in reasons.items())
        yield Text("\nfailed or turned away: ").append(_name(kinds))
    for failure in figures["failures"][:SHOWN]:
        where = (failure["replica_id"],) if failure["replica_id"] else ()
        facts = " · ".join((failure["reason"], failure["tenant"], *where, failure["request_id"]))
        yield _name(f"{_age(figures['at'] - failure['at'])} ago: {facts}")


class _Table(Table):
    """Leaves out its last columns where the terminal is too narrow for all."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.columns[0].max_width = max(NARROWEST_NAME, options.max_width // 3)
        endless = options.update(max_width=ENDLESS)
        while (
            len(self.columns) > FEWEST_COLUMNS
            and self.__rich_measure__(console, endless).maximum > options.max_width
        ):
            self.columns.pop()
        yield from super().__rich_console__(console, options)


def _table(first: str, *others: str) -> Table:
    table = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"\n{first}", overflow="ellipsis", no_wrap=True)
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


def _age(seconds: float) -> str:
    """For what is minutes and hours ago, where tenths of seconds say nothing."""
    for unit, length_s in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
