"""What a step will take, and how much output a sequence has still to come.

Owns two estimates that learn as the engine runs. Both are pure: they read no clock, draw no
random number, and say None instead of guessing while they know too little. Nothing that the
scheduler decides depends on them; the ledger notes them beside what happened.
"""

from __future__ import annotations

import math

__all__ = ["Lengths", "OutputLengths", "StepTime"]


class StepTime:
    """Seconds of a step as a + b · tokens + c · KV positions read, fitted online.

    Least squares of the relative error with exponential forgetting, none of the coefficients
    negative. A step that is far off counts as one at the edge of what is usual (Huber's rule), so
    a hiccup passes without a trace, while a lasting change is followed. What the inputs do not
    tell apart, as while all sequences only decode, is shared out by a slight ridge.
    """

    FORGETTING = 0.98
    KNOWN_AFTER = 8
    """Steps before a prediction is made, and before outliers are told apart."""
    REFIT_FROM, REFIT_EVERY = 64, 8
    """Solving is most of the work, and after so many steps one more changes little."""
    _OUTLIER = 4.0
    """Times the usual relative error."""
    _USUAL_AT_LEAST = 0.05
    _RIDGE = 1e-6
    """Of the squares' mean."""
    _SCALE = (1.0, 1.0 / 64, 1.0 / 4096)
    """Brings the three inputs to one order of magnitude."""

    def __init__(self, forgetting: float = FORGETTING) -> None:
        self.seen = 0
        self._forgetting = forgetting
        self._weights = [0.0, 0.0, 0.0]
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3
        self._usual = self._USUAL_AT_LEAST

    def predict(self, tokens: int, kv_read: int) -> float | None:
        """Seconds; None while too little is known."""
        if self.seen < self.KNOWN_AFTER:
            return None
        return self._at(self._inputs(tokens, kv_read))

    def observe(self, tokens: int, kv_read: int, seconds: float) -> None:
        """Take in what a step took."""
        x = self._inputs(tokens, kv_read)
        seconds = max(seconds, 1e-9)
        if self.seen >= self.KNOWN_AFTER:
            seconds = self._tamed(seconds, self._at(x))
        self.seen += 1
        # Divided by its time, each step counts with its relative error.
        row = x[0] / seconds, x[1] / seconds, x[2] / seconds
        forget = self._forgetting
        self._squares = [
            [forget * old + here * there for old, there in zip(olds, row, strict=True)]
            for olds, here in zip(self._squares, row, strict=True)
        ]
        self._products = [
            forget * old + here for old, here in zip(self._products, row, strict=True)
        ]
        if self.seen < self.REFIT_FROM or self.seen % self.REFIT_EVERY == 0:
            self._weights = self._solve()

    def _tamed(self, seconds: float, predicted: float) -> float:
        bound = self._OUTLIER * self._usual * predicted
        seconds = max(predicted - bound, min(predicted + bound, seconds), 0.1 * predicted, 1e-9)
        error = abs(seconds - predicted) / seconds
        self._usual = max(0.9 * self._usual + 0.1 * error, self._USUAL_AT_LEAST)
        return seconds

    def _solve(self) -> list[float]:
        """The coefficients; one that would be negative is left out, and the others fitted anew."""
        squares = self._squares
        ridge = self._RIDGE * (squares[0][0] + squares[1][1] + squares[2][2])
        chosen = [0, 1, 2]
        while True:
            found = _solve(
                [[squares[i][j] + ridge * (i == j) for j in chosen] for i in chosen],
                [self._products[i] for i in chosen],
            )
            lowest = min(found)
            if lowest >= 0.0:
                break
            del chosen[found.index(lowest)]
        weights = [0.0, 0.0, 0.0]
        for index, weight in zip(chosen, found, strict=True):
            weights[index] = weight
        return weights

    def _inputs(self, tokens: int, kv_read: int) -> tuple[float, float, float]:
        return self._SCALE[0], self._SCALE[1] * tokens, self._SCALE[2] * kv_read

    def _at(self, x: tuple[float, float, float]) -> float:
        w = self._weights
        return w[0] * x[0] + w[1] * x[1] + w[2] * x[2]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the matrix is positive definite and is used up."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
            right[j] -= factor * right[i]
    for i in reversed(range(size)):
        for j in range(i + 1, size):
            right[i] -= matrix[i][j] * right[j]
        right[i] /= matrix[i][i]
    return right


class Lengths:
    """How many tokens outputs had: a histogram, exact up to 16, then eight buckets an octave.

    Old lengths fade: all counts are halved whenever they come to ``FADE_AT``.
    """

    FADE_AT = 2048.0
    KNOWN_AFTER = 8.0
    """Outputs of at least the length at hand, before a prediction is made."""
    _EXACT = 16
    _BUCKETS = 16 + 8 * 20

    def __init__(self) -> None:
        self.total = 0.0
        self._counts = [0.0] * self._BUCKETS

    def add(self, length: int) -> None:
        self._counts[self._bucket(length)] += 1.0
        self.total += 1.0
        if self.total >= self.FADE_AT:
            self._counts = [count / 2 for count in self._counts]
            self.total /= 2

    def remaining(self, generated: int) -> tuple[int, int] | None:
        """p50 and p90 of what follows ``generated`` tokens; None while too little is known."""
        first = self._bucket(generated) + 1 if generated else 0
        longer = sum(self._counts[first:])
        if longer < self.KNOWN_AFTER:
            return None
        p50, p90 = (self._quantile(first, share * longer) for share in (0.5, 0.9))
        return p50 - generated, p90 - generated

    def _quantile(self, first: int, rank: float) -> int:
        below = 0.0
        for bucket in range(first, self._BUCKETS):
            below += self._counts[bucket]
            if below >= rank:
                return self._highest(bucket)
        return self._highest(self._BUCKETS - 1)

    def _bucket(self, length: int) -> int:
        if length < self._EXACT:
            return length
        return min(self._EXACT + int(8 * (math.log2(length) - 4)), self._BUCKETS - 1)

    def _highest(self, bucket: int) -> int:
        """The greatest length in a bucket."""
        if bucket < self._EXACT:
            return bucket
        return math.ceil(2 ** (4 + (bucket - self._EXACT + 1) / 8)) - 1


class OutputLengths:
    """Output lengths by tenant, in bounded memory.

    The tenants that end the most sequences have a histogram of their own; everybody's lengths are
    in a common one, which speaks for the others. When a new tenant finds no place, the one that
    was seen least yields (the rule of the Space-Saving sketch, with fading counts).
    """

    def __init__(self, max_tenants: int = 64) -> None:
        self._max_tenants = max_tenants
        self._everyone = Lengths()
        self._tenants: dict[str, Lengths] = {}

    @property
    def num_tenants(self) -> int:
        return len(self._tenants)

    def add(self, tenant: str, length: int) -> None:
        """Take in the output length of a sequence that came to its own end."""
        self._everyone.add(length)
        lengths = self._tenants.get(tenant)
        if lengths is None:
            if len(self._tenants) >= self._max_tenants:
                del self._tenants[min(self._tenants, key=lambda name: self._tenants[name].total)]
            lengths = self._tenants[tenant] = Lengths()
        lengths.add(length)

    def remaining(self, tenant: str, generated: int, at_most: int) -> tuple[int, int] | None:
        """p50 and p90 of the tokens still to come, each ``at_most``; None when nothing is known."""
        own = self._tenants.get(tenant)
        pair = own.remaining(generated) if own is not None else None
        if pair is None:
            pair = self._everyone.remaining(generated)
        return pair and (min(pair[0], at_most), min(pair[1], at_most))
