"""A limit of so much a minute, which may be overdrawn and is then paid back.

Owns one level. What is taken is often known only when it has been used, so the bucket says
whether there is something left, and lets itself go below zero. It reads no clock.
"""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Fills at ``per_minute``, up to one minute's worth, with which it starts.

    Attributes:
        level: what was left when it was last looked at.
        per_minute: what comes in a minute, and what it holds at most.
    """

    def __init__(self, per_minute: float) -> None:
        """``per_minute`` > 0."""
        self.level = per_minute
        self.per_minute = per_minute
        self._at: float | None = None

    def take(self, tokens: float, now: float) -> None:
        """Use up so many, whether they are there or not."""
        self._fill(now)
        self.level -= tokens

    def allows(self, now: float, tokens: float = 0.0) -> bool:
        """Whether there is something left, and so many, or all that there can ever be."""
        return self.wait_s(now, tokens) == 0.0

    def wait_s(self, now: float, tokens: float = 0.0) -> float:
        """Seconds until ``allows``, if nothing is taken meanwhile."""
        self._fill(now)
        if self.level > 0 and self.level >= min(tokens, self.per_minute):
            return 0.0
        needed = min(max(tokens, 1.0), self.per_minute)
        return (needed - self.level) * 60.0 / self.per_minute

    def _fill(self, now: float) -> None:
        # A first look has nothing to add; neither has a reading that is older than the last one.
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self.level = min(self.per_minute, self.level + elapsed * self.per_minute / 60.0)
        self._at = now if self._at is None else max(self._at, now)
