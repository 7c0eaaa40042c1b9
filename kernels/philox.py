"""Counter-based random numbers: Philox 4×32-10.

Owns the map from (seed, choice, position) to a uniform number. There is no state, hence nothing
to save, restore or share: the same three numbers give the same result on any machine, in any
batch, in any order. Knows nothing of logits.

The generator is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC 2011), with the constants of their Random123 library.

    key      = seed, low and high 32 bits
    counter  = (position, choice, purpose, 0)

``purpose`` keeps numbers that are drawn for different reasons at the same position apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["philox_4x32", "uniform"]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox_4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Encrypt counters.

    Args:
        counter: (4, rows) words below 2^32; held in 64 bits, as all words here, so that a
            product of two keeps its high half.
        key: (2, rows) words below 2^32.

    Returns:
        (4, rows) words below 2^32.
    """
    a, b, c, d = counter
    low_key, high_key = key
    for turn in range(_ROUNDS):
        if turn:
            low_key = (low_key + _WEYL[0]) & _LOW
            high_key = (high_key + _WEYL[1]) & _LOW
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _HALF) ^ b ^ low_key,
            second & _LOW,
            (first >> _HALF) ^ d ^ high_key,
            first & _LOW,
        )
    return np.stack((a, b, c, d))


def uniform(
    seed: NDArray[np.uint64],
    choice: NDArray[np.uint64],
    position: NDArray[np.uint64],
    purpose: int = 0,
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2^-53, one a row.

    Args:
        seed: (rows,) all 64 bits count.
        choice: (rows,) the low 32 bits count.
        position: (rows,) the low 32 bits count.
        purpose: what the numbers are for; 0 is the choice of the next token.
    """
    zeros = np.zeros_like(seed)
    counter = np.stack((position & _LOW, choice & _LOW, zeros + np.uint64(purpose), zeros))
    words = philox_4x32(counter, np.stack((seed & _LOW, seed >> _HALF)))
    bits = (words[0] << np.uint64(21)) ^ (words[1] >> np.uint64(11))
    numbers: NDArray[np.float64] = bits * 2.0**-53
    return numbers
