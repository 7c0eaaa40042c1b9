"""What requests make of their logits before a token is chosen: bias, penalties, masks.

Owns the rules below, row by row. Their order is vLLM's (its ``Sampler``), but that the bias comes
before the masks, which makes no difference: nothing brings a masked token back.

1. ``bias`` is added.
2. Repetition: the logits of tokens that stand in prompt or output are divided by it where they
   are positive, else multiplied.
3. Frequency, then presence: subtracted from the logits of tokens that stand in the output, for
   each occurrence, and once.
4. What is not a number now is the least finite float32, and infinities are the largest and the
   least.
5. Tokens that are not allowed or masked, and forbidden ones, get −∞. When none would remain, the
   forbidden ones are not forbidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adjustment", "adjust", "clean"]

_LIMIT = np.finfo(np.float32).max


def _none() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What one row is to suffer.

    Attributes:
        biased: tokens whose logit has something added, each once.
        bias: what is added to each of them.
        prompt, output: the tokens so far; may be left out where no penalty reads them.
        repetition: 1 is off.
        frequency, presence: 0 is off.
        allowed: if any, all others are masked.
        mask: if any, a bit for each token, the lowest first; all that have 0 are masked.
        forbidden: are masked.
    """

    biased: NDArray[np.int64] = field(default_factory=_none)
    bias: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    prompt: NDArray[np.int64] = field(default_factory=_none)
    output: NDArray[np.int64] = field(default_factory=_none)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    allowed: NDArray[np.int64] = field(default_factory=_none)
    mask: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    forbidden: NDArray[np.int64] = field(default_factory=_none)


def clean(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """The row itself if its largest logit is finite, else a copy after rule 4.

    So there is always a largest logit, and it is a number.
    """
    if np.isfinite(row.max()):
        return row
    return np.minimum(np.fmax(row, -_LIMIT), _LIMIT)


def adjust(row: NDArray[np.float32], by: Adjustment) -> None:
    """Apply the rules to one row (vocabulary,) in place."""
    with np.errstate(over="ignore", invalid="ignore"):
        row[by.biased] += by.bias
        if by.repetition != 1.0:
            is_seen = np.zeros(len(row), bool)
            is_seen[by.prompt] = is_seen[by.output] = True
            seen = np.flatnonzero(is_seen)
            values = row[seen]
            row[seen] = np.where(values > 0, values / by.repetition, values * by.repetition)
        if by.frequency or by.presence:
            tokens, counts = np.unique(by.output, return_counts=True)
            row[tokens] -= by.frequency * counts + by.presence
    np.fmax(row, -_LIMIT, out=row)
    np.minimum(row, _LIMIT, out=row)
    if by.allowed.size:
        kept = row[by.allowed]
        row.fill(-np.inf)
        row[by.allowed] = kept
    if by.mask.size:
        bits = np.unpackbits(by.mask, count=len(row), bitorder="little")
        row[bits == 0] = -np.inf
    if by.forbidden.size:
        kept = row[by.forbidden]
        row[by.forbidden] = -np.inf
        if row.max() == -np.inf:
            row[by.forbidden] = kept
