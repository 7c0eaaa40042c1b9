"""What each arm of the live comparison came to: on time, paid for, and both against ``fixed``.

Owns the figures. A request is on time whose first token came by its target after the moment at
which it was to be sent, and whose other tokens kept their pace; one that failed is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chairlift.evaluation.autoscaling_arms import LiveSettings
from chairlift.evaluation.percentiles import percentiles
from chairlift.evaluation.records import RequestRecord

__all__ = ["ArmRun", "on_time", "summary", "table"]

BASE = "fixed"


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm.

    Attributes:
        replicas: seconds from the start, and how many there were from then on.
        decisions: that changed it, as the service tells them.
    """

    arm: str
    records: tuple[RequestRecord, ...]
    replicas: tuple[tuple[float, int], ...]
    decisions: tuple[dict[str, Any], ...] = ()


def on_time(record: RequestRecord, settings: LiveSettings) -> bool:
    """Whether both targets were met."""
    if record.failure is not None or not record.chunks:
        return False
    paced = record.tokens < 2 or record.time_per_output_token <= settings.per_token_s
    return paced and record.time_to_first_token <= settings.first_token_s


def summary(runs: Sequence[ArmRun], settings: LiveSettings) -> dict[str, Any]:
    """All figures as JSON can hold them; shares of ``fixed`` where it was run."""
    arms = {run.arm: _figures(run, settings) for run in runs}
    base = arms.get(BASE)
    for each in arms.values():
        for name in ("goodput_per_s", "replica_hours"):
            each[f"{name}_share"] = each[name] / base[name] if base and base[name] else None
    return {"arms": arms}


def _figures(run: ArmRun, settings: LiveSettings) -> dict[str, Any]:
    seconds = settings.for_s / settings.faster
    met = sum(on_time(record, settings) for record in run.records)
    first = percentiles(
        record.time_to_first_token
        for record in run.records
        if record.failure is None and record.chunks
    )
    failures = Counter(record.failure for record in run.records if record.failure is not None)
    paid_s = sum(
        count * (min(end, seconds) - begin)
        for (begin, count), (end, _) in pairwise([*run.replicas, (seconds, 0)])
        if begin < seconds
    )
    return {
        "requests": len(run.records),
        "on_time": met,
        "on_time_ratio": met / max(1, len(run.records)),
        "goodput_per_s": met / seconds,
        "replica_hours": paid_s / 3600,
        "mean_replicas": paid_s / seconds,
        "ttft_p50_s": None if first is None else first.p50,
        "ttft_p99_s": None if first is None else first.p99,
        "failures": dict(failures),
        "replicas": [list(each) for each in _changes(run.replicas)],
        "decisions": list(run.decisions),
        "arrivals": _per_second(run.records, seconds),
    }


def _changes(replicas: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Without what repeats."""
    found: list[tuple[float, int]] = []
    for at_s, count in replicas:
        if not found or found[-1][1] != count:
            found.append((round(at_s, 2), count))
    return found


def _per_second(records: Sequence[RequestRecord], seconds: float) -> list[int]:
    counts = [0] * (int(seconds) + 1)
    for record in records:
        counts[min(int(record.intended), int(seconds))] += 1
    return counts


def table(found: Mapping[str, Any]) -> str:
    """For people."""
    lines = [
        "arm       on time   goodput/s  of fixed  replica-hours  of fixed  TTFT p50, p99 s  failed"
    ]
    for arm, each in found["arms"].items():
        shares = [
            "-" if each[name] is None else f"{each[name]:.1%}"
            for name in ("goodput_per_s_share", "replica_hours_share")
        ]
        first = " ".join(
            "-" if each[name] is None else f"{each[name]:.2f}"
            for name in ("ttft_p50_s", "ttft_p99_s")
        )
        lines.append(
            f"{arm:9} {each['on_time_ratio']:7.1%} {each['goodput_per_s']:11.2f} {shares[0]:>9}"
            f" {each['replica_hours']:14.4f} {shares[1]:>9} {first:>16}"
            f" {sum(each['failures'].values()):7}"
        )
    return "\n".join(lines)
