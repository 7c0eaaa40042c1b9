"""Feeds what a ledger recorded to the same scheduler, and compares every decision.

Owns the order in which recorded inputs reach a scheduler, and what counts as a decision: plan
slices, preemptions, block tables, admissions, endings, everything turned down with its reason, and
the seats and blocks that follow. The scheduler is the one that serves; the runner's part is played
by the recorded tokens.

A replay starts at the first snapshot. At each later one the whole state is compared, the free list
and the names of cached blocks included. After a gap it goes on at the next snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chairlift.cluster.errors import LedgerError
from chairlift.workers import ledger_codec as codec
from chairlift.workers.ledger_format import Cursor
from chairlift.workers.ledger_records import (
    Advanced,
    Gap,
    Header,
    Inputs,
    Note,
    Plan,
    Queued,
    Record,
    Refill,
    Retired,
    Snapshot,
    Stage,
    StageRecord,
)
from chairlift.workers.scheduler import Outcome, Scheduler
from chairlift.workers.sequence import SequenceKey, StepPlan, StepResult
from chairlift.workers.snapshot import blocks_used, capture, restore

__all__ = ["Difference", "Replayed", "replay"]


_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of a state that no scheduler was ever in."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that came out otherwise."""

    step: int
    stage: str
    what: str
    recorded: Any
    recomputed: Any

    def __str__(self) -> str:
        return (
            f"step {self.step}, {self.stage}: {self.what} differs\n"
            f"  recorded    {self.recorded}\n"
            f"  recomputed  {self.recomputed}"
        )


@dataclass(slots=True)
class Replayed:
    """How far a replay came.

    Attributes:
        steps: whole turns that were decided again.
        decisions: stages compared.
        snapshots: at which the whole state was compared.
        skipped: records before the first snapshot, or between a gap and the next one.
    """

    steps: int = 0
    decisions: int = 0
    snapshots: int = 0
    skipped: int = 0
    difference: Difference | None = None


def replay(header: Header, records: Iterable[Record]) -> Replayed:
    """Decide everything again, up to the first difference.

    Raises:
        LedgerError: the file has no snapshot to start from, or its records do not follow upon
            each other as the engine writes them.
    """
    replayed = Replayed()
    player = _Player(header, replayed)
    for record in records:
        try:
            player.play(record)
        except _Differs as found:
            replayed.difference = found.difference
            break
    if not player.started:
        raise LedgerError("there is no snapshot to start a replay from")
    return replayed


class _Differs(Exception):
    """Carries the difference out of the stages."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class _Player:
    """One scheduler that is led through the recorded stages."""

    def __init__(self, header: Header, replayed: Replayed) -> None:
        self.started = False
        self._header = header
        self._replayed = replayed
        self._scheduler: Scheduler | None = None
        self._plan = StepPlan(())
        self._result: StepResult | None = None
        self._due = Stage.QUEUE

    def play(self, record: Record) -> None:
        if isinstance(record, Snapshot):
            self._meet(record)
        elif isinstance(record, Gap):
            self._scheduler = None
        elif isinstance(record, Note):
            return
        elif self._scheduler is None:
            self._replayed.skipped += 1
        else:
            self._decide(self._scheduler, record)

    def _meet(self, snapshot: Snapshot) -> None:
        """Start from a snapshot, or see whether its state has been reached."""
        if self._scheduler is not None:
            here, there = capture(self._scheduler), snapshot.state
            for part in there:
                _compare(snapshot.step, "snapshot", part, there[part], here.get(part))
            self._replayed.snapshots += 1
            return
        try:
            self._scheduler = restore(self._header, snapshot.state)
        except _NONSENSE as error:
            raise LedgerError(f"the snapshot of step {snapshot.step} is wrong: {error!r}") from None
        self.started = True
        self._due = Stage.QUEUE

    def _decide(
        self, scheduler: Scheduler, record: Queued | Plan | Advanced | Retired | Refill
    ) -> None:
        head = record.head
        if head.stage is not self._due:
            raise LedgerError(
                f"stage {head.stage.name.lower()} of step {head.step} stands where "
                f"{self._due.name.lower()} was due"
            )
        try:
            self._stage(scheduler, record)
        except (*_NONSENSE, RuntimeError, StopIteration) as error:
            raise _Differs(
                Difference(head.step, head.stage.name.lower(), "the scheduler", "went on", error)
            ) from None
        _compare_resources(head, scheduler)
        self._replayed.decisions += 1
        if head.stage is Stage.REFILL:
            self._replayed.steps += 1
        self._due = Stage(head.stage % len(Stage) + 1)

    def _stage(
        self, scheduler: Scheduler, record: Queued | Plan | Advanced | Retired | Refill
    ) -> None:
        step, stage = record.head.step, record.head.stage.name.lower()
        match record:
            case Queued():
                outcomes = scheduler.cancel(_take_in(scheduler, record.inputs))
                if record.inputs.hand_over:
                    outcomes += scheduler.hand_over()
                _compare(step, stage, "who ended", record.endings, _endings(outcomes))
            case Plan():
                self._plan = scheduler.plan()
                cursor = Cursor(codec.pack_plan(self._plan))
                slices, preempted, turned_down, tables = codec.read_plan(cursor)
                _compare(step, stage, "who yielded", record.preempted, preempted)
                _compare(step, stage, "the plan", record.slices, slices)
                _compare(step, stage, "who was turned down", record.turned_down, turned_down)
                _compare(step, stage, "the block tables", record.tables, tables)
            case Advanced():
                self._result = None if record.failed else StepResult(record.sampled)
                due = sum(piece.samples for piece in self._plan.slices)
                if not record.failed:
                    _compare(step, stage, "the number of tokens", len(record.sampled), due)
            case Retired():
                cancelled = _take_in(scheduler, record.inputs)
                outcomes = scheduler.retire(self._plan, self._result, cancelled)
                if record.inputs.hand_over:
                    outcomes += scheduler.hand_over()
                _compare(step, stage, "who ended", record.endings, _endings(outcomes))
            case Refill():
                admission = scheduler.refill()
                scheduler.take_block_events()  # nobody else does, and they would pile up
                cursor = Cursor(codec.pack_refill(admission, [None] * len(admission.admitted)))
                admitted, turned_down, _ = codec.read_refill(cursor)
                _compare(step, stage, "who was admitted", record.admitted, admitted)
                _compare(step, stage, "who was turned down", record.turned_down, turned_down)


def _take_in(scheduler: Scheduler, inputs: Inputs) -> tuple[SequenceKey, ...]:
    """As ``Engine`` does it."""
    if inputs.controls is not None:
        scheduler.set_controls(inputs.controls)
    scheduler.add(inputs.arrivals)
    return inputs.cancelled


def _endings(outcomes: Iterable[Outcome]) -> Any:
    return codec.read_endings(Cursor(codec.pack_endings(outcomes)))


def _compare_resources(head: StageRecord, scheduler: Scheduler) -> None:
    stage = head.stage.name.lower()
    for what, recorded, recomputed in (
        ("the Controls' version", head.controls_version, scheduler.controls.version),
        ("the number of running", head.running, len(scheduler.running)),
        ("the number of waiting", head.waiting, len(scheduler.waiting)),
        ("the number of used blocks", head.blocks_used, blocks_used(scheduler)),
    ):
        _compare(head.step, stage, what, recorded, recomputed)


def _compare(step: int, stage: str, what: str, recorded: object, recomputed: object) -> None:
    if recorded != recomputed:
        raise _Differs(Difference(step, stage, what, recorded, recomputed))
