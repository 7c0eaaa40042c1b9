"""A cluster of as many replicas as are called for, in simulated time.

Owns time, and the life of replicas: they are ordered, serve after a while, and are drained, each
open request going on elsewhere with the tokens that it has. The router's parts and the policy are
those that serve; replicas are ``fleet_replica``'s. Replicas are paid for from order to end.

    given ─► SimulatedRouter ─► FleetReplica × n        once a second: reports, Fold, sizer, orders
                                  ▲ start_s after the order     ▼ drained: handed over
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

from chairlift.cluster.config_sections import RouterConfig, TelemetryConfig
from chairlift.cluster.windows import Fold
from chairlift.evaluation.fleet_replica import FleetReplica
from chairlift.evaluation.guard_replica import Machine
from chairlift.evaluation.guard_router import Asked, Clocks, SimulatedRouter
from chairlift.evaluation.guard_traffic import Given
from chairlift.workers.scheduler import Outcome as SequenceOutcome

__all__ = ["FleetCourse", "FleetSettings", "Sight", "Size", "Sizer", "play_fleet"]

EPOCH = 1_700_000_040.0
"""What the wall clock says at the start; a minute begins."""

TICK_S, HEARTBEAT_S, LOOK_S = 0.1, 0.5, 1.0

REPLICAS_OF_A_ROUTER = 20
"""The one simulated router has the room of as many as there would be."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a sizer may look at.

    Attributes:
        now: of the wall clock.
        fold: all that routers reported.
        desired: replicas, as decided last.
        ready, starting, draining: replicas that serve, will, and hand over.
        ongoing: requests that wait or run.
    """

    now: float
    fold: Fold
    desired: int
    ready: int
    starting: int
    draining: int
    ongoing: int


class Sizer(Protocol):
    """Decides how many replicas there should be."""

    def desired(self, sight: Sight) -> int:
        """Asked once a second."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What there is, and what comes.

    Attributes:
        given: in order of time.
        machine: each replica.
        start: replicas that serve when time begins.
        start_s: from the order of a replica until it serves.
        patience_s: how long requests wait for their first token.
        first_token_s, per_token_s: the targets.
        seed: of all that is drawn.
    """

    given: Sequence[Given]
    machine: Machine
    start: int
    start_s: float
    patience_s: float = 60.0
    first_token_s: float = 1.0
    per_token_s: float = 0.1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How many replicas there were from a time on."""

    at_s: float
    desired: int
    ready: int
    starting: int
    draining: int

    @property
    def paid(self) -> int:
        return self.ready + self.starting + self.draining


@dataclass(slots=True)
class FleetCourse:
    """What happened.

    Attributes:
        asked: all requests, in order of arrival.
        sizes: one a second.
        replica_s: that were paid until the last request came.
        moved: requests that a drained replica handed over.
    """

    settings: FleetSettings
    asked: list[Asked] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    replica_s: float = 0.0
    moved: int = 0


@dataclass(slots=True, eq=False)
class _Member:
    """A replica of the cluster; ``turn`` tells its present run's end from those that are void."""

    replica: FleetReplica
    turn: int = 0
    spoke_at: float = 0.0


class _Fleet:
    """The replicas that there are, in order of their names.

    Attributes:
        touched: those for which something came since they were last looked at.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self.touched: list[FleetReplica] = []
        self.ready: dict[str, _Member] = {}
        self.draining: dict[str, _Member] = {}
        self.starting: list[str] = []
        self._settings = settings
        self._numbers = count()

    @property
    def paid(self) -> int:
        return len(self.ready) + len(self.draining) + len(self.starting)

    def order(self) -> str:
        """One more is to start."""
        name = f"replica-{next(self._numbers):06d}"
        self.starting.append(name)
        return name

    def serve(self, name: str) -> _Member | None:
        """It has started; None if it was called off."""
        if name not in self.starting:
            return None
        self.starting.remove(name)
        dice = random.Random(f"steps {self._settings.seed} {name}")
        replica = FleetReplica(name, self._settings.machine, dice, self.touched.append)
        member = self.ready[name] = _Member(replica)
        return member

    def least(self) -> _Member:
        """Of those that serve, the one that has least to hand over, and of those the newest."""
        loads = {name: each.replica.load for name, each in reversed(self.ready.items())}
        name = min(loads, key=lambda name: loads[name].running + loads[name].waiting)
        member = self.draining[name] = self.ready.pop(name)
        return member

    def of(self, name: str) -> _Member | None:
        return self.ready.get(name) or self.draining.get(name)


class _FleetWorld:
    """One course while it runs."""

    def __init__(self, settings: FleetSettings, sizer: Sizer, most: int) -> None:
        self._now = 0.0
        self._settings = settings
        self._sizer = sizer
        self._desired = settings.start
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._fleet = _Fleet(settings)
        telemetry = TelemetryConfig(
            first_token_target_s=settings.first_token_s, per_token_target_s=settings.per_token_s
        )
        self._router = SimulatedRouter(
            0,
            (),
            _roomy(most),
            telemetry,
            Clocks(lambda: self._now, lambda: EPOCH + self._now),
            settings.patience_s,
        )
        self._fold = Fold()
        self._course = FleetCourse(settings)
        self._paid_at = 0.0
        self._last_s = settings.given[-1].at_s

    def run(self) -> FleetCourse:
        """From the begin until all have ended."""
        for _ in range(self._settings.start):
            self._serve(self._fleet.order())
        self._arrive(iter(self._settings.given))
        self._every(TICK_S, lambda: self._router.tick(TICK_S))
        self._every(HEARTBEAT_S, self._heartbeat)
        self._every(LOOK_S, self._look)
        while self._agenda and not (self._now >= self._last_s and not self._router.open):
            self._now, _, action = heapq.heappop(self._agenda)
            action()
            self._settle()
        self._pay()
        self._course.asked = self._router.done
        return self._course

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), action))

    def _every(self, period_s: float, action: Callable[[], None]) -> None:
        def again(turn: int) -> None:
            action()
            self._at((turn + 1) * period_s, partial(again, turn + 1))

        self._at(period_s, partial(again, 1))

    def _arrive(self, requests: Iterator[Given], following: Given | None = None) -> None:
        following = following or next(requests, None)
        while following is not None and following.at_s <= self._now:
            self._router.ask(following.request, _nothing)
            following = next(requests, None)
        if following is not None:
            self._at(following.at_s, partial(self._arrive, requests, following))

    def _settle(self) -> None:
        """Replicas for which something came begin a step, or end their run with the present one."""
        touched = self._fleet.touched
        while touched:
            member = self._fleet.of(touched.pop().name)
            if member is None:
                continue
            if not member.replica.busy:
                self._begin(member)
            elif (ends_at := member.replica.cut(self._now)) is not None:
                self._until(member, ends_at)

    def _begin(self, member: _Member) -> None:
        if (ends_at := member.replica.begin(self._now)) is not None:
            self._until(member, ends_at)

    def _until(self, member: _Member, ends_at: float) -> None:
        member.turn += 1
        self._at(ends_at, partial(self._end, member, member.turn))

    def _end(self, member: _Member, turn: int) -> None:
        if turn != member.turn:
            return  # the run was cut
        replica, outcomes = member.replica, member.replica.end()
        member.spoke_at = self._now
        if replica.draining:
            self._leave(member, outcomes)
            return
        self._begin(member)
        self._router.frame(replica, outcomes)
        self._router.pump()

    def _leave(self, member: _Member, outcomes: list[SequenceOutcome]) -> None:
        """It hands over what it has, and is gone."""
        handed = member.replica.hand_over()
        self._course.moved += len(handed)
        self._router.frame(member.replica, [*outcomes, *handed])
        self._pay()
        del self._fleet.draining[member.replica.name]
        self._router.links.part(member.replica.name)
        self._router.pump()

    def _heartbeat(self) -> None:
        for member in self._fleet.ready.values():
            if self._now - member.spoke_at >= HEARTBEAT_S:
                self._router.heartbeat(member.replica, member.replica.heartbeat(self._now))
                member.spoke_at = self._now

    def _look(self) -> None:
        router, fleet, now = self._router, self._fleet, EPOCH + self._now
        router.acknowledged = self._fold.put(router.reporter.report(router.acknowledged), now)
        sight = Sight(
            now=now,
            fold=self._fold,
            desired=self._desired,
            ready=len(fleet.ready),
            starting=len(fleet.starting),
            draining=len(fleet.draining),
            ongoing=router.open,
        )
        self._desired = self._sizer.desired(sight)
        self._resize()
        self._course.sizes.append(
            Size(
                self._now,
                self._desired,
                len(fleet.ready),
                len(fleet.starting),
                len(fleet.draining),
            )
        )

    def _resize(self) -> None:
        fleet = self._fleet
        self._pay()
        while len(fleet.ready) + len(fleet.starting) < self._desired:
            self._at(self._now + self._settings.start_s, partial(self._serve, fleet.order()))
        while len(fleet.ready) + len(fleet.starting) > self._desired:
            if fleet.starting:
                fleet.starting.pop()
                continue
            member = fleet.least()
            self._router.heartbeat(member.replica, member.replica.drain())
            if not member.replica.busy:
                self._leave(member, [])
            elif (ends_at := member.replica.cut(self._now)) is not None:
                self._until(member, ends_at)

    def _serve(self, name: str) -> None:
        member = self._fleet.serve(name)
        if member is None:
            return
        self._router.links.join(member.replica)
        self._router.heartbeat(member.replica, member.replica.heartbeat(self._now))
        self._router.pump()

    def _pay(self) -> None:
        """For what there was until now, to be told before there are more or fewer."""
        until = min(self._now, self._last_s)
        self._course.replica_s += self._fleet.paid * max(0.0, until - self._paid_at)
        self._paid_at = max(self._paid_at, until)


def play_fleet(settings: FleetSettings, sizer: Sizer, most: int) -> FleetCourse:
    """One course, with ``most`` replicas at the most."""
    return _FleetWorld(settings, sizer, most).run()


def _roomy(most: int) -> RouterConfig:
    usual, routers = RouterConfig(), -(-most // REPLICAS_OF_A_ROUTER)
    return RouterConfig(
        max_requests=usual.max_requests * routers,
        max_queued=usual.max_queued * routers,
        max_queued_tokens=usual.max_queued_tokens * routers,
    )


def _nothing() -> None:
    """Who sends by the clock does not care how it ended."""
