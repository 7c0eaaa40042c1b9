"""The whole loop that the Guard closes, in simulated time: all that decides, nothing that waits.

Owns time and what happens when: requests arrive, steps end, routers report, the Hub folds, reads
the signals and lets the Guard take a step, and the Controls come back with the next report. All
that decides is the code that serves: scheduler, queue, placement, recorder, fold, signals, Guard.
A course follows from its settings alone, to the last digit.

    traffic ─► SimulatedRouter ─► Replica       ten times a second  routers look after themselves
                     │    ▲                     four times          replicas say their load anew
              report │    │ state               once                routers report, then the Guard
                     ▼    │
                Fold ─► SignalReader ─► Guard
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import isinf

from chairlift.cluster.config_sections import RouterConfig, TelemetryConfig
from chairlift.cluster.fairness_figures import BatchShape
from chairlift.cluster.guard import Guard
from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.guard_state import GuardState, Mode, Move, Reading, Rung, Signal
from chairlift.cluster.protocol import Controls
from chairlift.cluster.signals import SignalReader, SignalSettings
from chairlift.cluster.windows import Fold
from chairlift.evaluation.guard_replica import Machine, Replica
from chairlift.evaluation.guard_router import PATIENCE_S, Asked, Clocks, SimulatedRouter
from chairlift.evaluation.guard_traffic import Crowd, Given, Traffic
from chairlift.router.metrics import Outcome

__all__ = [
    "Course",
    "Fault",
    "Look",
    "World",
    "WorldSettings",
    "capacity",
    "play",
]

EPOCH = 1_700_000_040.0
"""What the wall clock says at the start; a minute begins."""

TICK_S, HEARTBEAT_S, REPORT_S = 0.1, 0.25, 1.0

CROWD_GATHERS_S = 1.0

CONTEXT = 512
"""Tokens of the longest sequence that the model allows, as far as fairness is concerned."""

_FLOOD, _FLOOD_S = 100.0, 20.0
"""Requests a second that are more than can be served, and how long to send them."""


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """What there is, and what comes.

    Attributes:
        duration_s: endless: until all that is given has ended.
        crowds: from the start to the end.
        seed: of all that is drawn.
        given: what comes besides, in order of time.
        base: Controls as configured; None for those of the machine.
        patience_s: how long a router lets requests wait for their first token.
        context: tokens of the longest sequence.
        policy: of the Guard; None for the one that ships.
        first_token_s, per_token_s: the targets.
    """

    traffic: tuple[Traffic, ...]
    duration_s: float
    seed: int = 0
    crowds: tuple[Crowd, ...] = ()
    machine: Machine = field(default_factory=Machine)
    replicas: int = 2
    routers: int = 1
    fair: bool = True
    mode: Mode = Mode.ACT
    policy: GuardPolicy | None = None
    first_token_s: float = 2.0
    per_token_s: float = 0.1
    given: tuple[Given, ...] = ()
    base: Controls | None = None
    patience_s: float = PATIENCE_S
    context: int = CONTEXT

    @property
    def shape(self) -> BatchShape:
        """As a service has it: any sequence may be as long as the model allows."""
        return BatchShape(self.context, self.context * self.machine.seats * self.replicas)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks at a time."""

    at_s: float
    breaks: Callable[[World], None]


@dataclass(frozen=True, slots=True)
class Look:
    """What the Guard saw and where it stood, once a second; ``at_s`` is simulated."""

    at_s: float
    readings: Mapping[Signal, Reading]
    state: GuardState


@dataclass(slots=True)
class Course:
    """What happened.

    Attributes:
        asked: all requests, in order of arrival.
        looks: one a second.
        moves: of the Guard; their times are of the wall clock, see ``at_s``.
    """

    settings: WorldSettings
    asked: list[Asked] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @staticmethod
    def at_s(move: Move) -> float:
        """When it was, in simulated seconds."""
        return move.at - EPOCH

    @property
    def highest(self) -> Rung:
        return max((look.state.rung for look in self.looks), default=Rung.NORMAL)


class World:
    """One course while it runs.

    Attributes:
        now: simulated seconds.
        replicas, routers: all there are.
    """

    def __init__(
        self, settings: WorldSettings, watch: Callable[[Replica], None] = lambda _: None
    ) -> None:
        """At the begin of time; ``watch`` sees a replica whenever it has begun a step or rests."""
        self.now = 0.0
        self._watch = watch
        self._settings = settings
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._turns = count()
        base = replace(settings.base or settings.machine.controls, fair=settings.fair)
        telemetry = TelemetryConfig(
            first_token_target_s=settings.first_token_s, per_token_target_s=settings.per_token_s
        )
        clocks = Clocks(lambda: self.now, self._wall)
        self.replicas = [
            Replica(
                f"replica-{number}",
                settings.machine,
                base,
                random.Random(f"steps {settings.seed} {number}"),
                settings.routers,
            )
            for number in range(settings.replicas)
        ]
        self.routers = [
            SimulatedRouter(
                number,
                self.replicas,
                RouterConfig(fair=settings.fair),
                telemetry,
                clocks,
                settings.patience_s,
            )
            for number in range(settings.routers)
        ]
        policy = settings.policy or load_policy()
        self._fold = Fold()
        self._reader = SignalReader(
            SignalSettings(
                first_token_target_s=settings.first_token_s,
                objective=policy.limits.objective,
                slowdown_ratio=policy.limits.slowdown_ratio,
                starvation_s=policy.limits.starvation_s,
                shape=settings.shape,
            )
        )
        self._guard = Guard(policy, base, settings.mode)
        self._course = Course(settings)

    def run(self, faults: Sequence[Fault] = ()) -> Course:
        """From the begin to the end; to be called once."""
        settings = self._settings
        for number, each in enumerate(settings.traffic):
            self._arrive(each.requests(settings.seed, number))
        self._arrive(iter(settings.given))
        for number, crowd in enumerate(settings.crowds):
            for client in range(crowd.clients):
                dice = random.Random(f"crowd {settings.seed} {number} {client}")
                self.at(dice.uniform(0.0, CROWD_GATHERS_S), partial(self._client, crowd, dice))
        for fault in faults:
            self.at(fault.at_s, partial(fault.breaks, self))
        self._every(TICK_S, self._tick)
        self._every(HEARTBEAT_S, self._heartbeat)
        self._every(REPORT_S, self._hub)
        agenda = self._agenda
        while agenda and agenda[0][0] <= settings.duration_s and not self._over:
            self.now, _, action = heapq.heappop(agenda)
            action()
        asked = [each for router in self.routers for each in router.done]
        self._course.asked = sorted(asked, key=lambda each: each.arrived_at)
        return self._course

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Let something happen; of what happens at one time, the first that was told is first."""
        heapq.heappush(self._agenda, (at_s, next(self._order), action))

    def _wall(self) -> float:
        return EPOCH + self.now

    def _every(self, period_s: float, action: Callable[[], None]) -> None:
        def again(turn: int) -> None:
            action()
            self.at((turn + 1) * period_s, partial(again, turn + 1))

        self.at(period_s, partial(again, 1))

    def _arrive(self, requests: Iterator[Given], following: Given | None = None) -> None:
        """Let those come whose time it is, before any replica begins a step, and then the next."""
        following = following or next(requests, None)
        while following is not None and following.at_s <= self.now:
            router = self.routers[next(self._turns) % len(self.routers)]
            asked = router.ask(following.request, _nothing)
            if following.leaves_s is not None:
                self.at(following.leaves_s, partial(self._tire, router, asked))
            following = next(requests, None)
        self._wake()
        if following is not None:
            self.at(following.at_s, partial(self._arrive, requests, following))

    def _tire(self, router: SimulatedRouter, asked: Asked) -> None:
        """Its client has waited long enough for the first token."""
        if not asked.tokens_at:
            router.leave(asked)
            router.pump()
            self._wake()

    @property
    def _over(self) -> bool:
        """Whether all that was given has ended, and nothing else is to come."""
        if not isinf(self._settings.duration_s):
            return False
        came = sum(len(each.done) for each in self.routers)
        return came == len(self._settings.given) and not any(each.open for each in self.routers)

    def _client(self, crowd: Crowd, dice: random.Random) -> None:
        """Ask, and again when it has ended."""

        def again() -> None:
            self.at(self.now + crowd.pause_s, partial(self._client, crowd, dice))

        router = self.routers[next(self._turns) % len(self.routers)]
        router.ask(crowd.request(dice), again)
        self._wake()

    def _wake(self) -> None:
        """Idle replicas that have something to do begin a step."""
        for replica in self.replicas:
            if not replica.busy:
                self._begin(replica)

    def _begin(self, replica: Replica) -> None:
        ends_at = replica.begin(self.now)
        if ends_at is not None:
            self.at(ends_at, partial(self._end, replica))
        self._watch(replica)

    def _end(self, replica: Replica) -> None:
        outcomes = replica.end()
        self._begin(replica)
        for router in self.routers:
            router.frame(replica, outcomes)
        for router in self.routers:
            router.pump()
        self._wake()

    def _tick(self) -> None:
        for router in self.routers:
            router.tick(TICK_S)
        self._wake()

    def _heartbeat(self) -> None:
        for replica in self.replicas:
            load = replica.heartbeat(self.now)
            if not replica.frozen:
                for router in self.routers:
                    router.heartbeat(replica, load)

    def _hub(self) -> None:
        """Routers report and hear the Guard's word of a second ago; then it decides anew."""
        wall = self._wall()
        for router in self.routers:
            report = router.reporter.report(router.acknowledged)
            router.acknowledged = self._fold.put(report, wall)
            if self._guard.state.version > report.guard_version:
                router.obey(self._guard.state)
        readings = self._reader.read(self._fold, wall)
        self._course.moves += self._guard.step(readings, wall)
        self._course.looks.append(Look(self.now, readings, self._guard.state))


def _nothing() -> None:
    """Who sends by the clock does not care how it ended."""


def play(settings: WorldSettings, faults: Sequence[Fault] = ()) -> Course:
    """One course."""
    return World(settings).run(faults)


def capacity(settings: WorldSettings) -> float:
    """Requests of the first traffic's kind that end in a second while more come than can end."""
    first = settings.traffic[0]
    flood = replace(first, rate=_FLOOD, arrivals="poisson", begin_s=0.0, lasts_s=_FLOOD_S)
    course = play(replace(settings, traffic=(flood,), duration_s=_FLOOD_S, mode=Mode.OFF))
    ended = [each.ended_at for each in course.asked if each.outcome is Outcome.FINISHED]
    begin_s = _FLOOD_S / 4  # until all seats are taken, and by sequences of all ages
    return sum(at is not None and at >= begin_s for at in ended) / (_FLOOD_S - begin_s)
