"""A replica for worlds of hundreds: steps in runs, without scheduler, blocks or tokens.

Owns a model of what ``guard_replica`` does with the real scheduler. Steps take as long as there
(``Machine``), seats are given away in order of arrival, and who decodes goes before who has a
prompt to compute, which is cut at the token budget. Steps that do nothing but decode, with the same
sequences, are one run, for which nothing is done but at its end; what comes meanwhile ends it with
the step that is under way:

    prompt │ prompt │ decode × 9          │ prompt …
                          ▲ submit: × 5 ─►│

What it leaves out: sharing of prefixes, fairness and classes within a replica, and preemption (each
sequence is given blocks for its greatest length, as ``Controls.reserve`` has it). Tests hold it
against the real scheduler.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

from chairlift.cluster.protocol import (
    Controls,
    FinishReason,
    LoadReport,
    ReplicaInfo,
    Request,
)
from chairlift.evaluation.guard_replica import Machine
from chairlift.workers.scheduler import Outcome
from chairlift.workers.sequence import SequenceKey

__all__ = ["FleetReplica"]

_TOKEN = 7
"""Every token is this one: nobody looks, and it ends nothing."""


@dataclass(slots=True, eq=False)
class _Rider:
    """A sequence: tokens that it has, that are computed, and that it is still to yield."""

    key: SequenceKey
    known: int
    computed: int
    left: int
    has_yielded: bool = False

    @property
    def pending(self) -> int:
        return self.known - self.computed


@dataclass(slots=True)
class _Run:
    """Steps that do the same.

    Attributes:
        counts: tokens of each rider in a step.
        steps: how many there are.
        first_s, more_s: what the first one takes, and each one more than the one before.
    """

    counts: list[tuple[_Rider, int]]
    began: float
    steps: int
    first_s: float
    more_s: float

    @property
    def seconds(self) -> float:
        return self.steps * self.first_s + self.more_s * self.steps * (self.steps - 1) / 2

    def steps_until(self, now: float) -> int:
        """Those that are over then, and the one that is under way."""
        if self.steps == 1:
            return 1
        slope, passed_s = self.more_s / 2, now - self.began
        line = self.first_s - slope
        # passed = slope × n² + line × n
        exact = passed_s / line
        if slope > 0.0:
            exact = (sqrt(line * line + 4 * slope * passed_s) - line) / (2 * slope)
        return min(self.steps, max(1, ceil(exact)))


class FleetReplica:
    """One replica.

    Attributes:
        frozen: its load reports do not leave it; never.
        load: after its last run.
        draining: it takes nothing any more; see ``hand_over``.
    """

    frozen = False

    def __init__(
        self,
        name: str,
        machine: Machine,
        dice: random.Random,
        woken: Callable[[FleetReplica], None] = lambda _: None,
    ) -> None:
        """Idle; ``woken``: told when something came for it."""
        self.name = name
        self.draining = False
        self.info = ReplicaInfo(
            replica_id=name,
            model="simulated",
            vocab_size=100,
            max_sequence_tokens=machine.blocks * machine.block_size,
            max_sequences=machine.seats,
            max_waiting=512,
            block_size=machine.block_size,
            blocks_total=machine.blocks,
        )
        self.load = LoadReport(blocks_total=machine.blocks)
        self._machine = machine
        self._dice = dice
        self._woken = woken
        self._running: list[_Rider] = []
        self._waiting: deque[_Rider] = deque()
        self._cancelled: set[SequenceKey] = set()
        self._run: _Run | None = None
        self._used = 0

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._run is not None

    def submit(
        self, origin: int, handle: int, request: Request, output: tuple[int, ...] = ()
    ) -> None:
        """A router sends a request, of one choice, that has come so far."""
        known = len(request.prompt) + len(output)
        left = request.sampling.max_tokens - len(output)
        self._waiting.append(_Rider(SequenceKey(origin, handle), known, 0, left))
        self._woken(self)

    def cancel(self, origin: int, handle: int) -> None:
        """A router takes a request back; nobody hears of its end."""
        self._cancelled.add(SequenceKey(origin, handle))
        self._woken(self)

    def obey(self, controls: Controls) -> None:
        """Its limits are those of the machine."""

    def begin(self, now: float) -> float | None:
        """Begin a run; when it will end, None if there is nothing to do."""
        self._drop()
        if not self._running:
            self._refill()
        if not self._running:
            return None
        decoding = [each for each in self._running if each.pending == 1]
        prompts = [each for each in self._running if each.pending > 1]
        counts = [(each, 1) for each in decoding[: self._machine.token_budget]]
        seats_free = bool(self._waiting) and len(self._running) < self._machine.seats
        # A first token is told at once, also where one token was left of its prompt.
        begins = not all(each.has_yielded for each in decoding)
        alone = not (prompts or seats_free or begins)
        steps = min(each.left for each in decoding) if alone else 1
        budget = self._machine.token_budget - len(counts)
        for each in prompts:
            if budget <= 0:
                break
            count = min(each.pending, budget)
            counts.append((each, count))
            budget -= count
        self._run = self._timed(counts, now, steps)
        return now + self._run.seconds

    def cut(self, now: float) -> float | None:
        """Let the run end with the present step; when that will be, None if it does anyway."""
        run = self._run
        if run is None or run.steps == 1:
            return None
        steps = run.steps_until(now)
        if steps == run.steps:
            return None
        run.steps = steps
        return run.began + run.seconds

    def end(self) -> list[Outcome]:
        """The run is over; what it did is in ``load``, too."""
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError("no step is under way")
        self._drop()
        outcomes, computed = [], 0
        for rider, count in run.counts:
            rider.computed += count * run.steps
            computed += count * run.steps
            if rider.computed < rider.known or rider.left == 0:
                continue
            # A run of several steps has a token of each step; a prompt's last step has one.
            rider.known += run.steps
            rider.computed = rider.known - 1
            rider.left -= run.steps
            rider.has_yielded = True
            finish = None if rider.left else FinishReason.LENGTH
            outcomes.append(Outcome(rider.key, (_TOKEN,) * run.steps, finish))
        self._running = [each for each in self._running if each.left]
        self._refill()
        self._report(run, computed, sum(len(each.tokens) for each in outcomes))
        return outcomes

    def hand_over(self) -> list[Outcome]:
        """End all that is open, between two steps, for others to go on with."""
        self._drop()
        riders = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        return [Outcome(each.key, (), FinishReason.HANDED_OVER) for each in riders]

    def drain(self) -> LoadReport:
        """It is to go, and says so."""
        self.draining = True
        return self.heartbeat(0.0)

    def heartbeat(self, now: float) -> LoadReport:
        """The load as it was, said anew."""
        age_s = 0.0 if self._run is None or not now else now - self._run.began
        self.load = self.load._replace(
            stamp=self.load.stamp + 1, step_age_s=age_s, draining=self.draining
        )
        return self.load

    def _timed(self, counts: list[tuple[_Rider, int]], now: float, steps: int) -> _Run:
        machine, luck = self._machine, max(0.5, self._dice.gauss(1.0, self._machine.noise))
        tokens = sum(count for _, count in counts)
        read = sum(rider.computed + count for rider, count in counts)
        first_s = machine.base_s + machine.per_token_s * tokens + machine.per_position_s * read
        more_s = machine.per_position_s * len(counts)
        return _Run(counts, now, steps, first_s * luck, more_s * luck)

    def _drop(self) -> None:
        """Forget whom routers took back."""
        if not self._cancelled:
            return
        gone, self._cancelled = self._cancelled, set()
        self._running = [each for each in self._running if each.key not in gone]
        self._waiting = deque(each for each in self._waiting if each.key not in gone)

    def _refill(self) -> None:
        """Admit who waits, while there are seats, blocks, and tokens of the next step."""
        machine, size = self._machine, self._machine.block_size
        used = sum(-(-(each.known + each.left) // size) for each in self._running)
        tokens = machine.token_budget - sum(each.pending for each in self._running)
        while self._waiting and len(self._running) < machine.seats and tokens > 0:
            rider = self._waiting[0]
            blocks = -(-(rider.known + rider.left) // size)
            if used + blocks > machine.blocks and self._running:
                break
            used += blocks
            tokens -= rider.known
            self._running.append(self._waiting.popleft())
        self._used = min(used, machine.blocks)

    def _report(self, run: _Run, computed: int, generated: int) -> None:
        load, unfinished = self.load, 0
        freeing = 0
        for each in self._running:
            pending = each.pending
            unfinished += pending if pending > 1 else 0
            freeing += pending == 1 and each.left == 1
        self.load = load._replace(
            step=load.step + run.steps,
            running=len(self._running),
            waiting=len(self._waiting),
            waiting_tokens=unfinished + sum(each.known for each in self._waiting),
            blocks_used=self._used,
            tokens_computed=load.tokens_computed + computed,
            tokens_generated=load.tokens_generated + generated,
            stamp=load.stamp + 1,
            draining=self.draining,
            freeing=freeing,
            steps_saturated=load.steps_saturated + bool(self._waiting),
            step_s=load.step_s + run.seconds,
            predicted_s=load.predicted_s + run.seconds,
            step_age_s=0.0,
        )
