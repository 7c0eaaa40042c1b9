"""What ``chairlift serve`` does when the Guard asks for more than Controls: roll back, stop.

Owns which configurations did well, and that each rung is obeyed once for each time that it is
entered. It reads no clock and knows neither HTTP nor how a configuration is deployed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from chairlift.cluster.guard_state import Mode, Rung

__all__ = ["Follower", "LastGood", "Wish"]

T = TypeVar("T")

GOOD_AFTER_S = 60.0
MOST_KEPT = 4
SEEN_BY_ALL_S = 3.0
"""After which every router has been told of ``STOP``, and has told what is open since."""
STOP_AFTER_S = 120.0
"""However much is still open; as long as a router waits that makes way for another one."""


class LastGood(Generic[T]):
    """Configurations that did well: that were in force for a minute while all was normal."""

    def __init__(self, first: T) -> None:
        self._present = first
        self._normal_since: float | None = None
        self._good: deque[T] = deque(maxlen=MOST_KEPT)  # the newest last; each once

    def applied(self, configuration: T) -> None:
        """It is in force from now on."""
        self._present, self._normal_since = configuration, None

    def seen(self, rung: Rung | None, now: float) -> None:
        """The Guard stands there now; None where that is not known, and so not known to be well."""
        if rung is not Rung.NORMAL:
            self._normal_since = None
        elif self._normal_since is None:
            self._normal_since = now
        elif now - self._normal_since >= GOOD_AFTER_S:
            self._forget_present()
            self._good.append(self._present)

    def take(self) -> T | None:
        """The newest that did well before the present one; that one did not, as it turns out."""
        self._forget_present()
        return self._good[-1] if self._good else None

    def _forget_present(self) -> None:
        if self._present in self._good:
            self._good.remove(self._present)


class Wish(enum.Enum):
    """What the Guard wants done."""

    ROLL_BACK = enum.auto()
    STOP = enum.auto()


class Follower:
    """Follows the Guard by looking at its view now and then.

    Attributes:
        rung: where it stood at the last look; None where that is not known.
    """

    def __init__(self) -> None:
        self.rung: Rung | None = None
        self._last = Rung.NORMAL
        self._stop_seen_at: float | None = None

    def look(self, view: Mapping[str, Any] | None, now: float) -> Wish | None:
        """What is to be done now; ``view`` is None where nobody answers."""
        before = self._last
        if view is None:
            self.rung = None
        elif view["mode"] != Mode.ACT.value:  # what it does not do, nobody does for it
            self.rung, self._last = None, Rung.NORMAL
        else:
            self.rung = self._last = Rung(view["rung_number"])
        if self._last is Rung.STOP:
            return Wish.STOP if self._may_stop(view, now) else None
        self._stop_seen_at = None
        entered = self._last is Rung.ROLL_BACK and before < Rung.ROLL_BACK
        return Wish.ROLL_BACK if entered else None

    def _may_stop(self, view: Mapping[str, Any] | None, now: float) -> bool:
        """What is open ends first, but nobody waits for it for ever."""
        if self._stop_seen_at is None:
            self._stop_seen_at = now
        waited_s = now - self._stop_seen_at
        all_ended = view is not None and not view["open"]
        return waited_s >= (SEEN_BY_ALL_S if all_ended else STOP_AFTER_S)
