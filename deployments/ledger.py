"""``chairlift ledger FILE``: what a ledger holds, as figures or as JSON lines.

Owns the flags and how the figures look; the figures are ``workers.ledger_summary``'s. With
``--url`` the ledger is that of a replica that runs (``deployments.ledger_fetch``).
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chairlift.cluster.errors import ConfigError, LedgerError
from chairlift.cluster.protocol import SamplingParams
from chairlift.deployments.ledger_fetch import fetch_ledger
from chairlift.evaluation.target_server import add_tls_flags, named_server
from chairlift.workers.decisions import Reason
from chairlift.workers.explain import REASONS
from chairlift.workers.ledger_file import LedgerFile, open_ledger, parse_ledger
from chairlift.workers.ledger_records import Header, Record, Stage
from chairlift.workers.ledger_summary import Spread, Summary, summarise
from chairlift.workers.sequence import Sequence

__all__ = ["add_arguments", "run"]

_ARRIVAL = "key request_id tenant choice cache_salt arrival sampling tokens".split()
_SAMPLING = "max_tokens min_tokens seed stop_token_ids ignore_eos prompt_logprobs".split()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", type=Path, nargs="?", help="a .ledger file")
    source.add_argument("--url", help="a service, of which to fetch what a replica has in memory")
    add_tls_flags(parser)
    parser.add_argument("--replica", metavar="ID", help="which one; needed if there are several")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="save what was fetched, print nothing"
    )
    parser.add_argument("--json", action="store_true", help="every record as a line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print a ledger, or save one that was fetched.

    Raises:
        LedgerError: it cannot be read, fetched or saved.
        ConfigError: the flags do not go together.
    """
    ledger = _find(arguments)
    if arguments.output is not None:
        _save(ledger.content, arguments.output)
    elif arguments.json:
        _print_lines(ledger)
    else:
        _print_summary(ledger.header, summarise(ledger.header, ledger))
    return 0


def _find(arguments: argparse.Namespace) -> LedgerFile:
    if arguments.url is not None:
        return parse_ledger(fetch_ledger(named_server(arguments), arguments.replica), arguments.url)
    for flag in ("replica", "output", "ca", "cert", "key"):
        if getattr(arguments, flag) is not None:
            raise ConfigError(f"--{flag} goes with --url")
    return open_ledger(arguments.file)


def _save(content: bytes, path: Path) -> None:
    """A ledger holds the tokens of prompts, so it is for nobody else on this machine."""
    try:
        path.touch(mode=0o600)
        path.write_bytes(content)
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}") from None


def _print_lines(ledger: LedgerFile) -> None:
    print(json.dumps({"kind": "header", **_plain(ledger.header)}))
    for record in ledger:
        print(json.dumps(_line(record)))


def _line(record: Record) -> dict[str, Any]:
    """The head's fields and the stage's own, side by side."""
    fields: dict[str, Any] = _plain(record)
    return {"kind": type(record).__name__.lower(), **fields.pop("head", {}), **fields}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: enumerations by name, dataclasses as objects."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _names(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _names(value: Any) -> list[str]:
    """What is recorded of a dataclass; the other fields of a sequence stand at their defaults."""
    match value:
        case Sequence():
            return _ARRIVAL
        case SamplingParams():
            return _SAMPLING
    return [field.name for field in dataclasses.fields(value)]


def _print_summary(header: Header, summary: Summary) -> None:
    console = Console(highlight=False)
    for line in _facts(header, summary):
        console.print(Text(line), soft_wrap=True)
    console.print(_stages(summary))
    if summary.waited:
        console.print(_waits(summary))
    for step, controls in summary.controls:
        by = "a person" if controls.by_person else "software"
        console.print(
            Text(
                f"step {step}: Controls {controls.version} by {by}: {controls.batching.value}, "
                f"{controls.token_budget} tokens, {controls.max_sequences} seats"
            )
        )
    for note in summary.notes:
        console.print(Text(f"step {note.step}: anomaly: {note.text}"))


def _facts(header: Header, s: Summary) -> list[str]:
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(header.started_at))
    ended = ", ".join(f"{count} {finish.name.lower()}" for finish, count in s.ended.items())
    refused = ", ".join(f"{n} {reason.name.lower()}" for reason, n in s.turned_down.items())
    return [
        f"{header.model}, replica {header.replica_id}, started {started}",
        f"{s.steps} steps in {s.seconds:.1f} s, {s.failed_steps} of them failed; "
        f"{s.planned_tokens} tokens planned, {s.output_tokens} of output",
        f"{s.arrived} sequences arrived; ended: {ended or 'none'}; {s.preemptions} preemptions",
        f"step time {_ms(s.step_time)}; prediction off by {_percent(s.error)}",
        f"seats taken {_plain_spread(s.seats)}; "
        f"blocks used {_plain_spread(s.blocks)} of {s.num_blocks}",
        f"turned down, sequences × stages: {refused or 'none'}",
    ]


def _stages(summary: Summary) -> Table:
    table = Table("stage", "ms a turn", "CPU ms a turn", "share", title="Where the time went")
    total = sum(summary.stage_seconds.values()) or 1.0
    turns = max(summary.turns, 1)
    for stage in Stage:
        seconds, cpu = summary.stage_seconds[stage], summary.stage_cpu_seconds[stage]
        table.add_row(
            stage.name.lower(),
            f"{1000 * seconds / turns:.3f}",
            f"{1000 * cpu / turns:.3f}",
            f"{100 * seconds / total:.1f} %",
        )
    return table


def _waits(summary: Summary) -> Table:
    """Sequence-seconds by tenant and reason, the tenants that waited most first."""
    reasons: list[Reason | None] = sorted(
        {reason for _, reason in summary.waited}, key=lambda reason: reason or 0
    )
    by_tenant: defaultdict[str, float] = defaultdict(float)
    for (tenant, _), seconds in summary.waited.items():
        by_tenant[tenant] += seconds
    titles = [f"for {REASONS[reason]}" for reason in reasons]
    table = Table("tenant", *titles, "total s", title="What sequences waited for, in seconds")
    for tenant in sorted(by_tenant, key=lambda name: -by_tenant[name])[:20]:
        cells = [f"{summary.waited.get((tenant, reason), 0.0):.3f}" for reason in reasons]
        table.add_row(Text(tenant), *cells, f"{by_tenant[tenant]:.3f}")
    return table


def _ms(spread: Spread) -> str:
    return f"{1000 * spread.p50:.2f} ms (p50), {1000 * spread.p90:.2f} ms (p90)"


def _percent(spread: Spread) -> str:
    if not spread.count:
        return "nothing that is known"
    return f"{100 * spread.p50:.1f} % (p50), {100 * spread.p90:.1f} % (p90)"


def _plain_spread(spread: Spread) -> str:
    return f"{spread.p50:.0f} (p50), {spread.p90:.0f} (p90)"
