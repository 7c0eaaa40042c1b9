"""Two runs of the same work: the one that a ledger recorded, and one under static batching.

Owns how both are observed. What was recorded is decided again by the scheduler that took it, from
a snapshot on (as ``replay`` does); static batching is a copy of that scheduler as it stood at the
first step that is observed, under other Controls. So prefix cache, tenants, classes, budget and
blocks are the same on both sides, down to the state at the start.

A step is one that computed something; time in which the replica had nothing to do is left out, and
requests keep their distance in steps. Both sides compute the same tokens: what a sequence had come
to at the end of the records is all that is asked of it. Static batching is told that length, which
nobody knows beforehand, and that flatters it; and nothing is cancelled there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chairlift.cluster.protocol import Batching
from chairlift.workers.ledger_records import Advanced, Inputs, Plan, Queued, Record, Refill, Retired
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Sequence, SequenceKey, StepPlan, StepResult

__all__ = ["Known", "Player", "Seats", "Static", "Stay"]

MOST_STEPS = 2400
"""After which the simulation is given up."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A seat, from step ``first`` to step ``last``.

    Attributes:
        prompt: of its first steps, those up to the first token in it: for the prompt, or for what
            was computed again.
    """

    seat: int
    first: int
    last: int
    prompt: int


@dataclass(slots=True)
class _Stay:
    seat: int
    first: int
    last: int
    token_at: int | None = None

    def told(self) -> Stay:
        until = self.last if self.token_at is None else self.token_at
        return Stay(self.seat, self.first, self.last, until - self.first + 1)


@dataclass(slots=True)
class Seats:
    """Gives out seats, the lowest free one first, and notes who had which for how long."""

    steps: int = 0
    used: int = 0
    stays: dict[int, list[_Stay]] = field(default_factory=dict)
    present: dict[int, _Stay] = field(default_factory=dict)

    def see(self, running: list[Sequence], plan: StepPlan) -> None:
        """A step that was planned, with those who hold a seat in it."""
        here = {sequence.arrival for sequence in running}
        self.present = {key: stay for key, stay in self.present.items() if key in here}
        taken = {stay.seat for stay in self.present.values()}
        free = (seat for seat in range(len(running)) if seat not in taken)
        for sequence in running:
            if sequence.arrival not in self.present:
                decodes = sequence.num_output > 0 and sequence.num_pending == 1
                stay = _Stay(next(free), self.steps, self.steps)
                stay.token_at = self.steps - 1 if decodes else None
                self.present[sequence.arrival] = stay
                self.stays.setdefault(sequence.arrival, []).append(stay)
        for stay in self.present.values():
            stay.last = self.steps
        for piece in plan.slices:
            if piece.samples and self.present[piece.sequence.arrival].token_at is None:
                self.present[piece.sequence.arrival].token_at = self.steps
        self.used += len(running)
        self.steps += 1

    def told(self, arrival: int) -> tuple[Stay, ...]:
        return tuple(stay.told() for stay in self.stays.get(arrival, ()))


@dataclass(slots=True)
class Known:
    """A sequence of the window.

    Attributes:
        sequence: as the replayed scheduler has it.
        after: the step after which it could first be admitted.
        begins: tokens that it came with; of those that were there already, that it had.
        computed: tokens that had been computed at the most.
        preemptions: that it had before.
    """

    sequence: Sequence
    after: int
    begins: int
    computed: int = 0
    preemptions: int = 0


class Player:
    """Leads one scheduler through recorded stages, and observes it from some moment on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.seats = Seats()
        self.known: dict[int, Known] = {}
        self.began_at = 0.0
        self.ends: list[float] = []
        self.num_seats = 0
        self._observes = False
        self._arrived: list[Sequence] = []
        self._plan = StepPlan(())
        self._result: StepResult | None = None

    def observe(self) -> None:
        self._observes = True
        scheduler = self.scheduler
        self.num_seats = scheduler.controls.max_sequences
        for sequence in (*scheduler.running, *scheduler.waiting.sequences()):
            self._meet(sequence, sequence.num_computed)

    def play(self, record: Record) -> None:
        scheduler = self.scheduler
        match record:
            case Queued():
                scheduler.cancel(self._take_in(record.inputs))
                self._hand_over(record.inputs)
            case Plan():
                self._plan = scheduler.plan()
                if self._plan.slices and self._observes:
                    self._see(record.head.at - record.head.seconds)
            case Advanced():
                self._result = None if record.failed else StepResult(record.sampled)
            case Retired():
                cancelled = self._take_in(record.inputs)
                scheduler.retire(self._plan, self._result, cancelled)
                self._hand_over(record.inputs)
                if self._plan.slices and self._observes:
                    self.ends.append(record.head.at)
            case Refill():
                for sequence in self._arrived:
                    self._meet(sequence, 0)
                self._arrived.clear()
                scheduler.refill()
                scheduler.take_block_events()  # nobody else does, and they would pile up

    def _meet(self, sequence: Sequence, computed: int) -> None:
        self.known[sequence.arrival] = Known(
            sequence, self.seats.steps, sequence.num_tokens, computed, sequence.preemptions
        )

    def _take_in(self, inputs: Inputs) -> tuple[SequenceKey, ...]:
        if inputs.controls is not None:
            self.scheduler.set_controls(inputs.controls)
        self.scheduler.add(inputs.arrivals)
        if self._observes:
            self._arrived += inputs.arrivals
        return inputs.cancelled

    def _hand_over(self, inputs: Inputs) -> None:
        if inputs.hand_over:
            self.scheduler.hand_over()

    def _see(self, at: float) -> None:
        if not self.seats.steps:
            self.began_at = at
        running = self.scheduler.running
        self.seats.see(running, self._plan)
        self.num_seats = max(self.num_seats, len(running))
        for piece in self._plan.slices:
            known = self.known[piece.sequence.arrival]
            known.computed = max(known.computed, piece.start + piece.count)


class Static:
    """The same work for a scheduler that gives away all seats at once."""

    def __init__(self, scheduler: Scheduler, player: Player) -> None:
        self.seats = Seats()
        self._scheduler = scheduler
        self._known = player.known
        controls = scheduler.controls
        scheduler.set_controls(
            replace(controls, version=controls.version + 1, batching=Batching.STATIC)
        )
        rode, there = player.seats.stays, set()
        for sequence in (*scheduler.running, *scheduler.waiting.sequences()):
            there.add(sequence.arrival)
            known = self._known[sequence.arrival]
            if sequence.arrival in rode and known.computed > sequence.num_computed:
                _ask_for(sequence, known)
            else:
                scheduler.cancel([sequence.key])
        self._coming = [self._known[arrival] for arrival in sorted(rode.keys() - there)]
        self._coming.reverse()

    def run(self) -> tuple[Seats, bool]:
        """Returns who sat where, and whether all was done."""
        seats, scheduler = self.seats, self._scheduler
        while seats.steps < MOST_STEPS:
            while self._coming and self._coming[-1].after <= seats.steps:
                scheduler.add([_copy(self._coming.pop())])
            scheduler.refill()
            plan = scheduler.plan()
            if plan.slices:
                seats.see(scheduler.running, plan)
                sampled = [self._next(p.sequence) for p in plan.slices if p.samples]
                scheduler.retire(plan, StepResult(tuple(sampled)), ())
                scheduler.take_block_events()
            elif self._coming:
                seats.steps = self._coming[-1].after  # it had nothing to do until then
            else:
                return seats, True
        return seats, False

    def _next(self, sequence: Sequence) -> int:
        tokens = self._known[sequence.arrival].sequence.tokens
        return tokens[sequence.num_tokens] if sequence.num_tokens < len(tokens) else 0


def _copy(known: Known) -> Sequence:
    """As it arrived, to be given to another scheduler."""
    been = known.sequence
    made = Sequence(
        key=been.key,
        request_id=been.request_id,
        tenant=been.tenant,
        choice=been.choice,
        sampling=been.sampling,
        arrival=been.arrival,
        tokens=been.tokens[: known.begins],
        num_prompt=been.num_prompt,
        cache_salt=been.cache_salt,
        priority=been.priority,
        weight=been.weight,
    )
    _ask_for(made, known)
    return made


def _ask_for(sequence: Sequence, known: Known) -> None:
    """Let it end where the records end; where no token came, with what they computed of it."""
    to_come = known.sequence.num_tokens - known.begins
    if not to_come:
        del sequence.tokens[max(known.computed, 1) :]
        sequence.num_prompt = min(sequence.num_prompt, sequence.num_tokens)
    sequence.sampling = replace(
        sequence.sampling,
        max_tokens=sequence.num_output + max(to_come, 1),
        ignore_eos=True,
        stop_token_ids=(),
    )
