"""How long a newcomer waits for its first token, from how fast those before it get their turn.

Owns two estimates that learn as the router runs: the rate at which sequences start while others
wait, and how far waits exceed what that rate promises. Pure: times are passed in. They say None
instead of guessing while they know too little.

    predicted = sequences ahead / rate of starts × correction + own tokens / speed of a replica
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

__all__ = ["FirstToken", "Prediction", "StartRate"]

WINDOW_S = 10.0
FORGET_S = 60.0
SLICE_S = 0.25
KNOWN_AFTER_S, KNOWN_AFTER_STARTS = 0.5, 4

MIN_CORRECTION, MAX_CORRECTION = 0.5, 4.0
COVERED = 0.99
"""Share of the waits that are to be no longer than predicted. It is high, for under overload
those who are let in with a deadline are the ones whose prediction only just meets it."""
MARGIN = 1.1
"""Added to that, since the waits to come are not those that were."""
REMEMBERED, ENOUGH = 1024, 16
"""Waits that the correction is made of, anew after every ``ENOUGH`` more."""
TEACHES_S = 0.25
"""A shorter wait is made of single starts, and teaches nothing about rates."""


@dataclass(slots=True)
class _Slice:
    """Starts in a piece of the time during which somebody waited."""

    ended_at: float
    seconds: float = 0.0
    starts: int = 0


class StartRate:
    """Sequences that start in a second while others wait, over the last ten such seconds.

    What is older than a minute is forgotten: since then there may be other replicas.
    """

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self._at = -math.inf
        self._waiting = False
        self._counts = False

    def started(self, now: float, n: int, *, waiting: bool) -> None:
        """Sequences go to a replica; to be told of all of them.

        Starts of one moment count if somebody waited before it; others found seats that were free.

        Args:
            now: seconds.
            n: sequences.
            waiting: something stays behind in the queue.
        """
        seconds = 0.0
        if now != self._at:
            self._counts = self._waiting
            seconds = now - self._at
        if self._counts:
            self._add(now, seconds, n)
        self._at, self._waiting = now, waiting

    def idle(self) -> None:
        """Nothing waits any more; to be told where the last one left without a start."""
        self._waiting = False

    def per_second(self, now: float) -> float | None:
        """The rate; None while too little is known."""
        while self._slices and self._slices[0].ended_at < now - FORGET_S:
            self._slices.popleft()
        seconds = sum(each.seconds for each in self._slices)
        starts = sum(each.starts for each in self._slices)
        if seconds < KNOWN_AFTER_S or starts < KNOWN_AFTER_STARTS:
            return None
        return starts / seconds

    def _add(self, now: float, seconds: float, n: int) -> None:
        if not self._slices or self._slices[-1].seconds >= SLICE_S:
            self._slices.append(_Slice(now))
        newest = self._slices[-1]
        newest.ended_at = now
        newest.seconds += seconds
        newest.starts += n
        total = sum(each.seconds for each in self._slices)
        while total - self._slices[0].seconds >= WINDOW_S:
            total -= self._slices.popleft().seconds


@dataclass(frozen=True, slots=True)
class Prediction:
    """A newcomer's time to first token.

    Attributes:
        seconds: what to expect, with rather little risk.
        wait_s: the part in the queue, before correction.
    """

    seconds: float
    wait_s: float


class FirstToken:
    """Predicts, and is told how long the waits were."""

    def __init__(self) -> None:
        self.correction = 1.0
        self._excesses: deque[float] = deque(maxlen=REMEMBERED)
        self._learnt = 0
        self._fastest = 0.0

    def predict(
        self,
        ahead: int,
        free_credits: int,
        starts_per_s: float | None,
        own_tokens: int,
        tokens_per_s: float | None,
    ) -> Prediction | None:
        """The time to first token; None when there is a queue, and nobody knows how fast it moves.

        Args:
            ahead: sequences that go before the newcomer.
            free_credits: sequences that replicas can be given now.
            starts_per_s: from a ``StartRate``.
            own_tokens: of the prompt.
            tokens_per_s: a replica's measured speed. While it decodes it is slower than with
                prompts, so the fastest ever is what counts.
        """
        self._fastest = max(self._fastest, tokens_per_s or 0.0)
        own_s = own_tokens / self._fastest if self._fastest else 0.0
        before = ahead + 1 - free_credits
        if before <= 0:
            return Prediction(own_s, 0.0)
        if starts_per_s is None:
            return None
        wait_s = before / starts_per_s
        return Prediction(MARGIN * wait_s * self.correction + own_s, wait_s)

    def learn(self, prediction: Prediction, waited_s: float) -> None:
        """Its first token came after so long, or it was too late."""
        if prediction.wait_s < TEACHES_S:
            return
        self._excesses.append(waited_s / prediction.wait_s)
        self._learnt += 1
        if self._learnt % ENOUGH == 0:
            covering = sorted(self._excesses)[math.ceil(COVERED * len(self._excesses)) - 1]
            self.correction = min(max(covering, MIN_CORRECTION), MAX_CORRECTION)
