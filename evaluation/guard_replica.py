"""A replica in simulated time: the real scheduler and block pool, and a model of what steps take.

Owns what a step takes and the order in which an engine does things (``workers.engine``): what is
sent to it during a step is taken in at its end, and what a step's news bring about comes in with
the next one. It reads no clock, and computes no token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chairlift.cluster.protocol import Controls, LoadReport, ReplicaInfo, Request
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.pace import Pace
from chairlift.workers.scheduler import Outcome, Scheduler
from chairlift.workers.sequence import Sequence, SequenceKey, StepPlan, StepResult

__all__ = ["Machine", "Replica"]

_TOKEN = 7
"""Every token is this one: nobody looks, and it ends nothing."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica has, and what its steps take.

    Attributes:
        base_s, per_token_s, per_position_s: of a step, for each token that it computes, and for
            each position of the KV cache that these read.
        noise: standard deviation of a step's time, as a share of it.
    """

    seats: int = 12
    token_budget: int = 256
    blocks: int = 512
    block_size: int = 16
    base_s: float = 0.030
    per_token_s: float = 0.0004
    per_position_s: float = 0.000002
    noise: float = 0.03
    prefix_cache: bool = False

    def step_s(self, plan: StepPlan) -> float:
        """Of a machine that is as it should be."""
        return self.base_s + self.per_token_s * plan.num_tokens + self.per_position_s * plan.kv_read

    @property
    def controls(self) -> Controls:
        return Controls(token_budget=self.token_budget, max_sequences=self.seats)


@dataclass(slots=True)
class _Step:
    """The step that is under way."""

    plan: StepPlan
    began: float
    seconds: float


@dataclass(slots=True)
class _Inbox:
    """What came during a step."""

    arrivals: list[Sequence] = field(default_factory=list)
    cancelled: list[SequenceKey] = field(default_factory=list)
    controls: Controls | None = None


class Replica:
    """One replica.

    Attributes:
        slower: times what its steps should take; a fault.
        frozen: its load reports do not leave it; a fault.
        load: after its last step, or heartbeat.
        budget_s: seconds of its steps, times the share of the token budget that they used.
    """

    def __init__(
        self, name: str, machine: Machine, base: Controls, dice: random.Random, routers: int = 1
    ) -> None:
        """Idle, with ``base`` in force; ``routers`` share its seats."""
        self.name = name
        self.slower = 1.0
        self.frozen = False
        self.budget_s = 0.0
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
        pool = BlockPool(machine.blocks, machine.block_size)
        self.scheduler = Scheduler(pool, base, (), prefix_cache=machine.prefix_cache)
        self.load = self.scheduler.load(0)._replace(routers=routers)
        self._machine = machine
        self._routers = routers
        self._dice = dice
        self._pace = Pace()
        self._inbox = _Inbox()
        self._step: _Step | None = None
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._step is not None

    @property
    def plan(self) -> StepPlan | None:
        """Of the step that is under way."""
        return None if self._step is None else self._step.plan

    def submit(
        self, origin: int, handle: int, request: Request, output: tuple[int, ...] = ()
    ) -> None:
        """A router sends a request, of one choice, that has come so far."""
        self._arrivals += 1
        self._inbox.arrivals.append(
            Sequence(
                key=SequenceKey(origin, handle),
                request_id=request.id,
                tenant=request.tenant,
                choice=0,
                sampling=request.sampling,
                arrival=self._arrivals,
                tokens=[*request.prompt, *output],
                num_prompt=len(request.prompt),
                priority=request.priority,
                weight=request.weight,
            )
        )

    def cancel(self, origin: int, handle: int) -> None:
        """A router takes a request back; nobody hears of its end."""
        self._inbox.cancelled.append(SequenceKey(origin, handle))

    def obey(self, controls: Controls) -> None:
        """Put newer Controls in force with the next step."""
        newest = self._inbox.controls
        if newest is None or controls.version > newest.version:
            self._inbox.controls = controls

    def begin(self, now: float) -> float | None:
        """Begin a step; when it will end, None if there is nothing to do."""
        self.scheduler.cancel(self._take_in())
        if not self.scheduler.running:
            self.scheduler.refill()
        plan = self.scheduler.plan()
        if not plan.slices:
            return None
        seconds = self._machine.step_s(plan) * self.slower
        seconds *= max(0.5, self._dice.gauss(1.0, self._machine.noise))
        self._step = _Step(plan, now, seconds)
        return now + seconds

    def end(self) -> list[Outcome]:
        """The step is over; what it did is in ``load``, too."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("no step is under way")
        plan = step.plan
        self._pace.observe(plan.num_tokens, plan.kv_read, step.seconds)
        budget = self.scheduler.controls.token_budget
        self.budget_s += step.seconds * plan.num_tokens / budget
        cancelled = self._take_in()
        result = StepResult([_TOKEN] * sum(piece.samples for piece in plan.slices))
        outcomes = self.scheduler.retire(plan, result, cancelled)
        self.scheduler.refill()
        made = self.scheduler.load(self.load.step + 1, self._pace.taken_s, self._pace.predicted_s)
        self.load = made._replace(stamp=self.load.stamp + 1, routers=self._routers)
        return outcomes

    def heartbeat(self, now: float) -> LoadReport:
        """The load as it was, said anew."""
        age_s = 0.0 if self._step is None else now - self._step.began
        self.load = self.load._replace(stamp=self.load.stamp + 1, step_age_s=age_s)
        return self.load

    def _take_in(self) -> list[SequenceKey]:
        """Whose sequences are to end."""
        inbox, self._inbox = self._inbox, _Inbox()
        if inbox.controls is not None:
            self.scheduler.set_controls(inbox.controls)
        if inbox.arrivals:
            self.scheduler.add(inbox.arrivals)
        return inbox.cancelled
