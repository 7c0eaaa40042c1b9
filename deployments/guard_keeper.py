"""The Guard at work in the Hub: when it looks, what it goes on from, and whom it tells.

Owns the Guard of the cluster for as long as the Hub lives. All that must outlive the Hub is the
Guard's state, which the routers obey and tell to the next one:

    first report ──2 s──► goes on from the highest state that was told ──► steps as reports come

Until then it decides nothing, for it may not know what is in force. Where no router knows a state,
there may still be workers that obey one of routers that have gone, so versions begin with the time
of day: above all that were ever told, and telling makes them obey this one.

It reads no clock and knows neither Ray nor HTTP; what the signals are is ``cluster.signals``', what
follows from them ``cluster.guard``'s.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from chairlift.cluster.errors import Unavailable
from chairlift.cluster.guard import Guard
from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.cluster.guard_state import GuardState, Mode, Readings, Rung, Signal
from chairlift.cluster.protocol import Controls
from chairlift.cluster.signals import SignalReader, SignalSettings
from chairlift.cluster.telemetry import Reply, Report
from chairlift.cluster.windows import Fold
from chairlift.deployments.guard_events import GuardEvents
from chairlift.deployments.guard_view import guard_view

__all__ = ["Acted", "GuardKeeper", "GuardSettings", "Order"]

logger = logging.getLogger(__name__)

SETTLE_S = 2.0
"""For routers to tell a Hub that has just started what they obey; each speaks every second."""
STEP_S = 0.5
"""Between two looks, however many routers report."""
EVERYTHING = -1

WAITS = {Signal.OFFERED_LOAD, Signal.QUEUE_DELAY, Signal.OLDEST_SLOPE, Signal.UNFAIRNESS}
"""What shows that requests wait."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What a Guard is made with.

    Attributes:
        policy: thresholds, owners and addresses.
        mode: ``act`` or ``shadow``.
        base: Controls of a service that is well.
        signals: what they are measured against.
    """

    policy: GuardPolicy
    mode: Mode
    base: Controls
    signals: SignalSettings


@dataclass(frozen=True, slots=True)
class Order:
    """What a person wants of the Guard.

    Attributes:
        by: the person's name.
        rung, overrides: of ``set`` only.
    """

    action: Literal["hold", "release", "set", "approve"]
    by: str
    rung: Rung | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acted:
    """What an order has led to: what is in force, and how the Guard stands."""

    state: GuardState
    view: dict[str, Any]


class GuardKeeper:
    """Keeps the one Guard of a cluster; times are seconds of the wall clock."""

    def __init__(self, settings: GuardSettings, fold: Fold, events: GuardEvents) -> None:
        self._settings = settings
        self._fold = fold
        self._events = events
        self._guard = Guard(settings.policy, settings.base, settings.mode)
        self._reader = SignalReader(settings.signals)
        self._readings: Readings = {}
        self._first_at: float | None = None
        self._settled = False
        self._stepped_at = 0.0

    def heard(self, report: Report, acknowledged: int, now: float, *, wakes: bool = False) -> Reply:
        """A report was folded, and is known up to the ``acknowledged`` second; the word on it.

        While the service ``wakes``, for there was no replica on purpose, waits are no overload.

        Whatever ails the Guard, telemetry goes on, and so do the last Controls.
        """
        try:
            return self._heard(report, acknowledged, now, wakes)
        except Exception:
            logger.exception("the Guard failed; what is in force stays")
            return Reply(acknowledged)

    def _heard(self, report: Report, acknowledged: int, now: float, wakes: bool) -> Reply:
        if self._first_at is None:
            self._first_at = now
        if report.guard is not None:
            self._guard.adopt(report.guard)
        elif report.guard_version > self._guard.state.version and report.after != EVERYTHING:
            return Reply(EVERYTHING)
        # The wall clock may be set back, and nothing may wait until it is where it was.
        if not self._settled and abs(now - self._first_at) >= SETTLE_S:
            self._settle(now)
        if self._settled and abs(now - self._stepped_at) >= STEP_S:
            self._step(now, wakes)
        newer = self._settled and self._guard.state.version > report.guard_version
        return Reply(acknowledged, self._guard.state if newer else None)

    def act(self, order: Order, now: float) -> Acted:
        """Do what a person wants.

        Raises:
            InvalidRequest: it makes no sense.
            Unavailable: what is in force is not known yet.
        """
        if not self._settled:
            raise Unavailable("the Hub has just started", code="no_hub", retry_after_s=SETTLE_S)
        guard, by = self._guard, order.by
        match order.action:
            case "hold":
                moves = guard.hold(by, now)
            case "release":
                moves = guard.release(by, now)
            case "approve":
                moves = guard.approve(by, now)
            case "set":
                moves = guard.set(by, now, order.rung, order.overrides)
        self._events.tell(moves)
        return Acted(guard.state, self._view(now))

    def view(self, now: float) -> dict[str, Any] | None:
        """As ``guard_view`` describes it; None until it is known what is in force."""
        return self._view(now) if self._settled else None

    def _view(self, now: float) -> dict[str, Any]:
        settings = self._settings
        reports = [report.open for report, _ in self._fold.present(now)]
        return guard_view(self._guard, settings.policy, settings.mode, self._readings) | {
            "open": sum(each for each in reports if each is not None),
            "moves_total": self._events.totals(),
            "calls": dataclasses.asdict(self._events.calls),
        }

    def _settle(self, now: float) -> None:
        self._settled = True
        if not self._guard.state.version:
            version = int(now)
            controls = replace(self._settings.base, version=version)
            self._guard.adopt(GuardState(version=version, controls=controls))

    def _step(self, now: float, wakes: bool) -> None:
        self._stepped_at = now
        readings = self._reader.read(self._fold, now)
        if wakes:
            readings = {name: each for name, each in readings.items() if name not in WAITS}
        self._readings = readings
        self._events.tell(self._guard.step(self._readings, now))
