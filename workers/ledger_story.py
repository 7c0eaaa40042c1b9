"""Follows every sequence through the records of a ledger.

Owns what is told of a sequence: when it came, how long it waited for what, what was computed of
it when, and how it ended. Summary and explanation both read it here.

Who waits, waits for what stops the first in line, so one clock for each reason is enough: it runs
while that reason is in force, and a sequence's waits are what the clocks gained meanwhile. Where
no admission was turned down, a sequence waits for nothing but the end of the step under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chairlift.cluster.protocol import FinishReason
from chairlift.workers.decisions import Reason, SequenceKey
from chairlift.workers.ledger_records import (
    Advanced,
    Endings,
    Gap,
    Inputs,
    Note,
    Plan,
    Queued,
    Record,
    Refill,
    Retired,
    Snapshot,
    StageRecord,
)
from chairlift.workers.sequence import Sequence, Status
from chairlift.workers.snapshot import restore_sequences

__all__ = [
    "Admitted",
    "Arrived",
    "Computed",
    "Ended",
    "Event",
    "FirstToken",
    "Follower",
    "Preempted",
    "Story",
    "WaitedFor",
]


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """Time without a seat: for what, and who stood at the head of the line."""

    reason: Reason | None
    behind: SequenceKey | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """The engine took it in; ``output``: tokens that it had from elsewhere."""

    at: float
    step: int
    output: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """``remaining``: p50 and p90 of the output that was expected."""

    at: float
    step: int
    waits: tuple[WaitedFor, ...]
    remaining: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Computed:
    """Tokens ``start … start + count - 1`` were part of a step."""

    at: float
    step: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Its first output token, or the first one here, was sampled."""

    at: float
    step: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """``tokens`` are to be computed again, save for what the prefix cache still has."""

    at: float
    step: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Its only end; ``waits`` when it had no seat then."""

    at: float
    step: int
    finish: FinishReason
    waits: tuple[WaitedFor, ...]


Event = Arrived | Admitted | Computed | FirstToken | Preempted | Ended


@dataclass(slots=True)
class Story:
    """One sequence, as far as the records tell.

    Attributes:
        is_whole: it arrived within the records; else it was open at their beginning.
        num_output: output tokens so far, those from elsewhere included.
        num_continued: output tokens that it arrived with.
        waited: seconds without a seat by reason; None is the wait for the step under way.
        events: kept for the sequences that were asked for.
    """

    key: SequenceKey
    request_id: str
    tenant: str
    choice: int
    num_prompt: int
    max_tokens: int
    is_whole: bool
    num_output: int = 0
    num_continued: int = 0
    preemptions: int = 0
    waited: dict[Reason | None, float] = field(default_factory=dict)
    finish: FinishReason | None = None
    events: list[Event] = field(default_factory=list)
    is_wanted: bool = False
    lined_up: dict[Reason | None, float] | None = None
    """What the clocks showed when its present wait began; None while it has a seat."""
    behind: dict[tuple[Reason | None, SequenceKey | None], float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output


class Follower:
    """Takes in records in their order; ``stories`` has every sequence by its arrival.

    Args:
        wants_events: asked with a request id; whether its events are to be kept.
        on_end: told of each sequence that has ended, which is then forgotten unless wanted.
    """

    def __init__(
        self, wants_events: Callable[[str], bool], on_end: Callable[[Story], None] | None = None
    ) -> None:
        self.stories: dict[int, Story] = {}
        self.names: dict[SequenceKey, str] = {}
        self._wants_events = wants_events
        self._on_end = on_end
        self._arrival_of: dict[SequenceKey, int] = {}
        self._in_line: dict[SequenceKey, Story] = {}  # of those whose events are kept
        self._plan: Plan | None = None
        self._failed = False
        self._clocks: dict[Reason | None, float] = {}
        self._reason: Reason | None = None
        self._first: SequenceKey | None = None
        self._at: float | None = None

    def take(self, record: Record) -> None:
        match record:
            case Snapshot():
                self._meet(record)
            case Gap() | Note():
                pass
            case _:
                self._pass(record.head.at)
                self._take_stage(record)

    def close(self, story: Story) -> None:
        """The records are over: count what a sequence that still waits has waited so far."""
        self._leave_line(story)

    def _take_stage(self, record: Queued | Plan | Advanced | Retired | Refill) -> None:
        match record:
            case Queued():
                self._arrive(record.head, record.inputs)
                self._end(record.head, record.endings)
            case Plan():
                self._yield(record)
                self._plan = record
            case Advanced():
                self._failed = record.failed
            case Retired():
                self._arrive(record.head, record.inputs)
                self._compute(record)
                self._end(record.head, record.endings)
            case Refill():
                self._admit(record)

    def _meet(self, snapshot: Snapshot) -> None:
        """Get to know whom the records have not told of."""
        for sequence in (each for side in restore_sequences(snapshot.state) for each in side):
            if self._arrival_of.get(sequence.key) != sequence.arrival:
                story = self._open(sequence, is_whole=False)
                story.preemptions = sequence.preemptions
                if sequence.status is Status.WAITING:
                    self._line_up(story)

    def _open(self, sequence: Sequence, *, is_whole: bool) -> Story:
        story = Story(
            key=sequence.key,
            request_id=sequence.request_id,
            tenant=sequence.tenant,
            choice=sequence.choice,
            num_prompt=sequence.num_prompt,
            max_tokens=sequence.sampling.max_tokens,
            is_whole=is_whole,
            num_output=sequence.num_output,
            is_wanted=self._wants_events(sequence.request_id),
        )
        self.stories[sequence.arrival] = story
        self.names[sequence.key] = sequence.request_id
        self._arrival_of[sequence.key] = sequence.arrival
        return story

    def _pass(self, at: float) -> None:
        """Let time pass up to ``at``."""
        seconds = at - self._at if self._at is not None else 0.0
        self._at = at
        reason = self._reason
        self._clocks[reason] = self._clocks.get(reason, 0.0) + seconds
        for story in self._in_line.values():
            first = self._first if self._first != story.key else None
            story.behind[reason, first] = story.behind.get((reason, first), 0.0) + seconds

    def _arrive(self, head: StageRecord, inputs: Inputs) -> None:
        for sequence in inputs.arrivals:
            story = self._open(sequence, is_whole=True)
            story.num_continued = story.num_output
            self._line_up(story)
            self._tell(story, Arrived(head.at, head.step, story.num_continued))

    def _yield(self, plan: Plan) -> None:
        for arrival in plan.preempted:
            story = self.stories.get(arrival)
            if story is not None:
                story.preemptions += 1
                self._line_up(story)
                self._tell(story, Preempted(plan.head.at, plan.head.step, story.num_tokens))

    def _compute(self, record: Retired) -> None:
        """Credit the plan to its sequences, now that it is known who was cancelled meanwhile."""
        plan, self._plan = self._plan, None
        if plan is None or self._failed:
            return
        at, step = record.head.at, record.head.step
        gone = {key for key, finish in record.endings if finish is FinishReason.CANCELLED}
        for piece in plan.slices:
            story = self.stories.get(piece.arrival)
            if story is None or story.key in gone:
                continue
            self._tell(story, Computed(at, step, piece.start, piece.count))
            if piece.start + piece.count == story.num_tokens:
                story.num_output += 1
                if story.num_output == story.num_continued + 1:
                    self._tell(story, FirstToken(at, step))

    def _end(self, head: StageRecord, endings: Endings) -> None:
        for key, finish in endings:
            arrival = self._arrival_of.pop(key, None)
            if arrival is None:
                continue
            story = self.stories[arrival]
            story.finish = finish
            self._tell(story, Ended(head.at, head.step, finish, self._leave_line(story)))
            if self._on_end is not None:
                self._on_end(story)
            if not story.is_wanted:
                del self.stories[arrival]

    def _admit(self, refill: Refill) -> None:
        for arrival, remaining in zip(refill.admitted, refill.remaining, strict=True):
            story = self.stories.get(arrival)
            if story is not None:
                waits = self._leave_line(story)
                event = Admitted(refill.head.at, refill.head.step, waits, remaining)
                self._tell(story, event)
        first = refill.turned_down[0] if refill.turned_down else None
        self._reason = first.reason if first is not None else None
        self._first = first.key if first is not None else None

    def _line_up(self, story: Story) -> None:
        story.lined_up = dict(self._clocks)
        story.behind = {}
        if story.is_wanted:
            self._in_line[story.key] = story

    def _leave_line(self, story: Story) -> tuple[WaitedFor, ...]:
        """Add what the present wait came to; who leaves without one gets an empty answer."""
        before, story.lined_up = story.lined_up, None
        if before is None:
            return ()
        self._in_line.pop(story.key, None)
        for reason, seconds in self._clocks.items():
            waited = seconds - before.get(reason, 0.0)
            if waited > 0:
                story.waited[reason] = story.waited.get(reason, 0.0) + waited
        return tuple(
            WaitedFor(reason, first, seconds)
            for (reason, first), seconds in story.behind.items()
            if seconds > 0
        )

    @staticmethod
    def _tell(story: Story, event: Event) -> None:
        if story.is_wanted:
            story.events.append(event)
