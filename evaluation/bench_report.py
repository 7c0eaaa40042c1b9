"""How a load run is shown: progress, tables, JSON.

Owns the rendering; computes no figure of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.percentiles import Percentiles
from chairlift.evaluation.records import RequestRecord, Summary

__all__ = ["RunProgress", "print_summary", "write_json"]

_LAG_SHARE = 0.01


class RunProgress:
    """A line on stderr that says how far the run is, where stderr is a terminal.

    Counts requests where their number is known, else seconds of ``duration``.
    """

    def __init__(self, requests: int | None, duration: float | None) -> None:
        console = Console(stderr=True)
        self._by_count = requests is not None
        self._ended = 0
        self._progress = Progress(
            TextColumn("requests" if self._by_count else "seconds "),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[ended]} ended"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=requests or duration, ended=0)

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, now: float) -> None:
        """One more request has ended, ``now`` seconds after the start."""
        self._ended += 1
        done = self._ended if self._by_count else int(now)
        self._progress.update(self._task, completed=done, ended=self._ended)


def print_summary(summary: Summary, settings: Mapping[str, object], *, to_stderr: bool) -> None:
    """Print the tables and, below them, what to be wary of."""
    console = Console(stderr=to_stderr, highlight=False)
    closed = settings.get("loop") == "closed"
    shown = {name: value for name, value in settings.items() if value is not None}
    console.print(escape(" ".join(f"{name}={value}" for name, value in shown.items())))
    console.print(_latency_table(summary, closed=closed))
    console.print(_count_table(summary))
    for failure, number in summary.failures.items():
        detail = " ".join(summary.details[failure].split())[:160]
        console.print(f"failed  {number} × {failure}: {escape(detail)}", soft_wrap=True)
    for warning in warnings(summary, closed=closed):
        console.print(f"note    {warning}", soft_wrap=True)


def warnings(summary: Summary, *, closed: bool) -> list[str]:
    """What a reader of the figures must know."""
    notes = []
    if closed:
        notes.append("closed loop: arrivals wait for the server, so latency under load is hidden")
    first = summary.time_to_first_token
    if summary.lag and first and summary.lag.p99 > _LAG_SHARE * first.p99:
        notes.append(
            f"the generator's own lag (p99 {1000 * summary.lag.p99:.1f} ms) is above 1% of the time"
            " to first token at p99: run it on a machine of its own or at a lower rate"
        )
    if 0 < summary.completed < 100:
        notes.append(f"{summary.completed} completed requests: p99 is little more than the worst")
    if summary.uncounted:
        notes.append(f"{summary.uncounted} answers without a token count: their chunks are counted")
    if summary.completed and summary.chunks != summary.output_tokens:
        notes.append(
            f"{summary.output_tokens} tokens came in {summary.chunks} chunks:"
            " inter-token latency spreads each answer's tokens evenly over its chunks"
        )
    if summary.right_length is not None and summary.right_length < 1:
        notes.append(
            f"{summary.right_length:.0%} of the answers have 90–110% of the length asked for:"
            " other lengths flatter or harm latency"
        )
    return notes


def write_json(
    file: str,
    summary: Summary,
    settings: Mapping[str, object],
    records: Sequence[RequestRecord] | None,
) -> None:
    """Write the figures, in seconds, to a file or, for ``-``, to stdout."""
    report: dict[str, Any] = {
        "settings": dict(settings),
        "summary": asdict(summary)
        | {
            "output_tokens_per_s": summary.output_tokens_per_s,
            "total_tokens_per_s": summary.total_tokens_per_s,
        },
    }
    if records is not None:
        report["records"] = [asdict(record) for record in records]
    text = json.dumps(report, indent=None if records is not None else 2)
    if file == "-":
        print(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json: cannot write {file}: {error.strerror}") from None


def _latency_table(summary: Summary, *, closed: bool) -> Table:
    since = "sending" if closed else "the intended time of sending"
    table = Table(title=f"milliseconds, from {since}", title_justify="left")
    for column, side in (("", "left"), ("p50", "right"), ("p95", "right"), ("p99", "right")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]  # a literal, as a string
    table.add_column("of", justify="right")
    for name, values in (
        ("time to first token", summary.time_to_first_token),
        ("inter-token latency, by token", summary.inter_token_latency),
        ("time per output token, by request", summary.time_per_output_token),
        ("longest gap, by request", summary.longest_gap),
        ("end to end", summary.end_to_end),
        ("lag of the generator", summary.lag),
    ):
        table.add_row(name, *_cells(values))
    return table


def _cells(values: Percentiles | None) -> list[str]:
    if values is None:
        return ["–"] * 4
    shown = [f"{1000 * value:.1f}" for value in (values.p50, values.p95, values.p99)]
    return [*shown, f"{values.count:.0f}"]


def _count_table(summary: Summary) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    share = f" ({summary.completed / summary.offered:.1%})" if summary.offered else ""
    table.add_row("completed / offered", f"{summary.completed} / {summary.offered}{share}")
    table.add_row("output tokens/s", f"{summary.output_tokens_per_s:.1f}")
    table.add_row("total tokens/s", f"{summary.total_tokens_per_s:.1f}")
    table.add_row("output tokens, in chunks", f"{summary.output_tokens} in {summary.chunks}")
    if summary.asked_ratio is not None:
        table.add_row("output / asked", f"{summary.asked_ratio:.1%}")
    table.add_row("seconds", f"{summary.duration:.1f}")
    return table
