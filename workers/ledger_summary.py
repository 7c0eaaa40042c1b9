"""What a ledger comes to, in figures.

Owns the sums and quantiles; ``deployments.ledger`` prints them.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from chairlift.cluster.protocol import Controls, FinishReason
from chairlift.workers.decisions import Reason
from chairlift.workers.ledger_records import (
    Advanced,
    Header,
    Note,
    Plan,
    Queued,
    Record,
    Refill,
    Retired,
    Stage,
)
from chairlift.workers.ledger_story import Follower, Story

__all__ = ["Spread", "Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 90th percentile of some values; zeros when there are none."""

    count: int = 0
    p50: float = 0.0
    p90: float = 0.0

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        if not values:
            return cls()
        if len(values) == 1:
            return cls(1, values[0], values[0])
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        return cls(len(values), deciles[4], deciles[8])


@dataclass(slots=True)
class Summary:
    """Figures of one file.

    Attributes:
        turns: of the loop; those without a plan had nothing to run.
        steps: turns with a plan.
        seconds: from the first stage's end to the last one's.
        stage_seconds, stage_cpu_seconds: sums over the steps.
        waited: sequence-seconds without a seat, by tenant and reason; None is the end of the step
            under way. Of the sequences that ended, and of those still open at the end.
        turned_down: sequences times stages, by reason.
        error: |measured - predicted| / measured of the steps that had a prediction.
        seats, blocks: that were taken after each step with a plan.
        controls: each change that came into force, with its step.
        notes: the anomalies.
    """

    turns: int = 0
    steps: int = 0
    failed_steps: int = 0
    seconds: float = 0.0
    planned_tokens: int = 0
    output_tokens: int = 0
    arrived: int = 0
    ended: Counter[FinishReason] = field(default_factory=Counter)
    preemptions: int = 0
    stage_seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(Stage, 0.0))
    stage_cpu_seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(Stage, 0.0))
    waited: dict[tuple[str, Reason | None], float] = field(default_factory=dict)
    turned_down: Counter[Reason] = field(default_factory=Counter)
    step_time: Spread = Spread()
    error: Spread = Spread()
    seats: Spread = Spread()
    blocks: Spread = Spread()
    num_blocks: int = 0
    controls: list[tuple[int, Controls]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def summarise(header: Header, records: Iterable[Record]) -> Summary:
    """Go once through the records."""
    return _Reckoner(header).reckon(records)


class _Reckoner:
    def __init__(self, header: Header) -> None:
        self._summary = Summary(num_blocks=header.num_blocks)
        self._waited: defaultdict[tuple[str, Reason | None], float] = defaultdict(float)
        self._follower = Follower(lambda _name: False, self._count_waits)
        self._step_times: list[float] = []
        self._errors: list[float] = []
        self._seats: list[float] = []
        self._blocks: list[float] = []
        self._ran = False
        self._first_at: float | None = None

    def reckon(self, records: Iterable[Record]) -> Summary:
        summary = self._summary
        for record in records:
            self._take(record)
            self._follower.take(record)
        for story in self._follower.stories.values():
            self._follower.close(story)
            self._count_waits(story)
        summary.waited = dict(self._waited)
        summary.step_time = Spread.of(self._step_times)
        summary.error = Spread.of(self._errors)
        summary.seats, summary.blocks = Spread.of(self._seats), Spread.of(self._blocks)
        return summary

    def _take(self, record: Record) -> None:
        summary = self._summary
        if isinstance(record, Note):
            summary.notes.append(record)
        if not isinstance(record, Queued | Plan | Advanced | Retired | Refill):
            return
        head = record.head
        self._first_at = head.at if self._first_at is None else self._first_at
        summary.seconds = head.at - self._first_at
        summary.stage_seconds[head.stage] += head.seconds
        summary.stage_cpu_seconds[head.stage] += head.cpu_seconds
        if isinstance(record, Queued | Retired):
            self._take_inputs(record)
        else:
            self._take_decision(record)

    def _take_inputs(self, record: Queued | Retired) -> None:
        summary, inputs = self._summary, record.inputs
        summary.arrived += len(inputs.arrivals)
        summary.ended.update(finish for _, finish in record.endings)
        if inputs.controls is not None and inputs.controls.version == record.head.controls_version:
            summary.controls.append((record.head.step, inputs.controls))
        if record.head.stage is Stage.RETIRE:
            summary.output_tokens += record.head.tokens

    def _take_decision(self, record: Plan | Advanced | Refill) -> None:
        summary, head = self._summary, record.head
        match record:
            case Plan():
                self._ran = bool(record.slices)
                summary.steps += self._ran
                summary.planned_tokens += head.tokens
                summary.preemptions += len(record.preempted)
                summary.turned_down.update({t.reason: t.count for t in record.turned_down})
            case Advanced() if self._ran:
                summary.failed_steps += record.failed
                self._step_times.append(head.seconds)
                if record.predicted_s is not None and head.seconds > 0 and not record.failed:
                    self._errors.append(abs(head.seconds - record.predicted_s) / head.seconds)
            case Refill():
                summary.turns += 1
                summary.turned_down.update({t.reason: t.count for t in record.turned_down})
                if self._ran:
                    self._seats.append(float(head.running))
                    self._blocks.append(float(head.blocks_used))

    def _count_waits(self, story: Story) -> None:
        for reason, seconds in story.waited.items():
            self._waited[story.tenant, reason] += seconds
