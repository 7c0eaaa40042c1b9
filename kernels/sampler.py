"""What a step asks when its logits are there: a token for each row, and how likely tokens were.

Owns the questions, one call for all rows, and their answers in plain numpy; those in C++ are
``kernels.cpu.cpp_sampling``'s. ``kernels.sampling`` and ``kernels.logprobs`` say what is meant.
A row's answers are functions of that row alone, whoever gives them; two who answer differ in last
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.logprobs import log_probabilities
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampling import sample

__all__ = ["CHOOSING", "Choosing", "Likely", "NumpySampler", "Sampler", "Wanted"]

Choosing = NDArray[np.void]
Logits = NDArray[np.float32]
Likely = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log probability; the likeliest tokens with theirs, in falling order."""
Wanted = tuple[int, int, int]
"""Row, token, number of likeliest tokens."""

CHOOSING = np.dtype(
    [
        ("temperature", np.float32),
        ("min_p", np.float32),
        ("top_p", np.float64),
        ("top_k", np.int64),
        ("seed", np.uint64),
        ("choice", np.uint64),
        ("position", np.uint64),
    ]
)
"""How the token of a row is chosen: parameters of ``sampling.sample`` and ``philox.uniform``."""


class Sampler(Protocol):
    """Logits are (rows, vocabulary), contiguous, and left as they are."""

    def sample(self, logits: Logits, choosing: Choosing) -> Sequence[int]:
        """One token for each row; ``choosing`` is (rows,) of ``CHOOSING``."""
        ...

    def log_probabilities(self, logits: Logits, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        """One answer for each that is wanted."""
        ...


class NumpySampler:
    """Implements ``Sampler`` where there is no compiler."""

    def sample(self, logits: Logits, choosing: Choosing) -> Sequence[int]:
        numbers = uniform(choosing["seed"], choosing["choice"], choosing["position"])
        rules = (choosing[name] for name in ("temperature", "top_k", "top_p", "min_p"))
        tokens: list[int] = sample(logits, *rules, uniform=numbers).tolist()
        return tokens

    def log_probabilities(self, logits: Logits, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        return [log_probabilities(logits[row], token, count) for row, token, count in wanted]
