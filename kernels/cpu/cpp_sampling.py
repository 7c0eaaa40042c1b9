"""Tokens and log probabilities in C++: all rows in one call, each by one thread.

Owns the way from ``kernels.sampler`` to the compiled library, and the checks at the border.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from chairlift.kernels.cpu.library import Library
from chairlift.kernels.sampler import CHOOSING, Choosing, Likely, Logits, Wanted

__all__ = ["CppSampler"]


class CppSampler:
    """Implements ``kernels.sampler.Sampler``."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def sample(self, logits: Logits, choosing: Choosing) -> Sequence[int]:
        rows, vocabulary = _shape(logits)
        if choosing.shape != (rows,) or choosing.dtype != CHOOSING:
            raise ValueError(f"{rows} rows, but {choosing.shape} of {choosing.dtype} to choose by")
        choosing = np.ascontiguousarray(choosing)
        tokens = np.empty(rows, np.int64)
        self._library.call(
            "sample",
            logits.ctypes.data,
            rows,
            vocabulary,
            choosing.ctypes.data,
            tokens.ctypes.data,
        )
        found: list[int] = tokens.tolist()
        return found

    def log_probabilities(self, logits: Logits, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        rows, vocabulary = _shape(logits)
        if not wanted:
            return
        asked = np.array(wanted, np.int64)
        counts = np.minimum(asked[:, 2], vocabulary, out=asked[:, 2])
        if (asked < 0).any() or (asked[:, :2] >= (rows, vocabulary)).any():
            raise IndexError(f"a row or a token is outside {rows} rows of {vocabulary} tokens")
        most = int(counts.max())
        values = np.empty((len(asked), 1 + most), np.float64)
        tokens = np.empty((len(asked), most), np.int64)
        self._library.call(
            "log_probabilities",
            logits.ctypes.data,
            vocabulary,
            asked.ctypes.data,
            *(len(asked), most),
            values.ctypes.data,
            tokens.ctypes.data,
        )
        for count, ids, (chosen, *rest) in zip(
            counts.tolist(), tokens.tolist(), values.tolist(), strict=True
        ):
            yield chosen, tuple(zip(ids[:count], rest[:count], strict=True))


def _shape(logits: Logits) -> tuple[int, int]:
    """Rows, vocabulary.

    Raises:
        ValueError: not something whose address can be given away.
    """
    rows, vocabulary = logits.shape
    if logits.dtype != np.float32 or not logits.flags.c_contiguous or not vocabulary:
        raise ValueError(f"expected contiguous float32, found {logits.dtype} {logits.shape}")
    return rows, vocabulary
