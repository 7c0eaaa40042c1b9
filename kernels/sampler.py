"""What a step asks when its logits are there: a token for each row, and how likely tokens were.

Owns the questions, one call for all rows, and their answers in plain numpy; those in C++ are
``kernels.cpu.cpp_sampling``'s, those on a GPU ``kernels.triton``'s. ``kernels.sampling`` and
``kernels.logprobs`` say what is meant. A row's answers are functions of that row alone, whoever
gives them; two who answer differ in last bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.kernels.logprobs import log_probabilities
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampling import sample

__all__ = [
    "CHOOSING",
    "CHOOSING_WORDS",
    "Choosing",
    "DeviceSampler",
    "HostSampler",
    "Likely",
    "NumpySampler",
    "Sampler",
    "Wanted",
]

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
CHOOSING_WORDS = CHOOSING.itemsize // 8
"""A row of it as int64: temperature and min_p, top_p, top_k, seed, choice, position."""


class Sampler(Protocol):
    """Logits are (rows, vocabulary), contiguous, and left as they are."""

    def sample(self, logits: Logits, choosing: Choosing) -> Sequence[int]:
        """One token for each row; ``choosing`` is (rows,) of ``CHOOSING``."""
        ...

    def log_probabilities(self, logits: Logits, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        """One answer for each that is wanted."""
        ...


@runtime_checkable
class DeviceSampler(Protocol):
    """A sampler of logits where they were computed; nothing there waits for the host.

    Logits are (rows, vocabulary), float32 and contiguous, and left as they are.
    """

    def sample_into(self, logits: Tensor, choosing: Tensor, *, out: Tensor) -> None:
        """One token for each row.

        Args:
            logits: see above.
            choosing: (rows, CHOOSING_WORDS) int64, the bytes of as many rows of ``CHOOSING``.
            out: (rows,) int64.
        """
        ...

    def log_probabilities(self, logits: Tensor, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        """As ``Sampler``; this one does wait."""
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


class HostSampler:
    """Implements ``DeviceSampler`` with a ``Sampler``, for logits on the CPU."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample_into(self, logits: Tensor, choosing: Tensor, *, out: Tensor) -> None:
        rules = choosing.numpy().view(CHOOSING)[:, 0]
        out.copy_(torch.tensor(self._sampler.sample(logits.numpy(), rules)))

    def log_probabilities(self, logits: Tensor, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        return self._sampler.log_probabilities(logits.numpy(), wanted)
