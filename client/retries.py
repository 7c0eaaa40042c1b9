"""When a call is tried again, and how often all calls of a client may be.

Owns the decision; pure, with the clock and the random source passed in. Only what cannot have
been computed is tried again: no connection, 429 and 503. Once a result has begun, nothing is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.client.errors import ClientError

__all__ = ["Attempts", "RetryBudget", "RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a client retries; ``RetryPolicy(attempts=1)`` never does.

    Attributes:
        attempts: of one call at most, the first one included.
        base_s: the first pause is drawn between 0 and this, each further one from twice as much.
        longest_s: of the pauses that are drawn; a server that asks for more than this in
            ``Retry-After`` is not waited for.
        share: of all calls may be retries, in the long run …
        floor: … and so many besides, given back over a minute.
    """

    attempts: int = 3
    base_s: float = 0.25
    longest_s: float = 30.0
    share: float = 0.1
    floor: int = 5

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base_s, self.longest_s, self.share, self.floor) < 0:
            raise ValueError(f"{self}: attempts must be at least 1, the rest at least 0")


class RetryBudget:
    """A bucket of retries, so that a failing server is not loaded by those that it fails.

    It begins with ``floor``, gains ``share`` with each call and ``floor`` over a minute, and holds
    at most twice the floor: what went well long ago pays for no storm now. Any thread may use it.
    """

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self._tokens = float(policy.floor)
        self._at = now
        self._lock = threading.Lock()

    def started(self, now: float) -> None:
        """A call begins."""
        with self._lock:
            self._fill(now, self._policy.share)

    def take(self, now: float) -> bool:
        """Whether one more retry may be; it is counted if so."""
        with self._lock:
            self._fill(now, 0.0)
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True

    def _fill(self, now: float, more: float) -> None:
        floor = self._policy.floor
        gained = more + (now - self._at) * floor / 60
        # A floor of 0 still lets the share add up to a whole retry.
        self._tokens = min(max(2.0 * floor, 1.0), self._tokens + gained)
        self._at = now


class Attempts:
    """The attempts of one call, and the time that is left to it."""

    def __init__(
        self, policy: RetryPolicy, budget: RetryBudget, timeout_s: float | None, now: float
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._deadline = None if timeout_s is None else now + timeout_s
        self._made = 0
        budget.started(now)

    def left_s(self, now: float) -> float | None:
        """Seconds until the deadline, 0 behind it; None without one."""
        return None if self._deadline is None else max(self._deadline - now, 0.0)

    def pause_s(
        self, error: ClientError, now: float, draw: Callable[[float, float], float]
    ) -> float | None:
        """Seconds to wait before the next attempt; None where there is to be none.

        ``draw`` gives a number between two.
        """
        policy, self._made = self._policy, self._made + 1
        asked = error.retry_after_s or 0.0
        if not error.safe_to_repeat or self._made >= policy.attempts or asked > policy.longest_s:
            return None
        widest = min(policy.base_s * 2.0 ** (self._made - 1), policy.longest_s)
        # On top of what was asked for: else all that were refused at once come back at once.
        pause = asked + draw(0.0, widest)
        left = self.left_s(now)
        if left is not None and pause >= left:
            return None
        return pause if self._budget.take(now) else None
