"""The words in which the scheduler says what it turned down, and why.

Owns the vocabulary that scheduler, ledger and explanations share. Knows no torch, no clock. What
a stage decided as a whole (``StepPlan``, ``Admission``) stands in ``workers.sequence``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Reason", "SequenceKey", "TurnedDown"]


@dataclass(frozen=True, slots=True, order=True)
class SequenceKey:
    """Names a sequence within one engine: the stream that asked for it, and its handle there."""

    origin: int
    handle: int


class Reason(enum.IntEnum):
    """Why a sequence did not get what it waited for."""

    NO_BLOCKS = 1
    """The KV cache has too few free blocks for it."""
    BUDGET = 2
    """The step's token budget is spent on others."""
    MAX_SEQUENCES = 3
    """Every seat is taken."""
    BATCH = 4
    """Static batching: the present batch is not over."""
    SHARED_PREFIX = 5
    """It waits one step for a block of the same prefix that another one computes."""
    FAIRNESS = 6
    PRIORITY = 7
    DEADLINE = 8
    CANCELLED = 9


@dataclass(frozen=True, slots=True)
class TurnedDown:
    """A sequence that was next in line and was passed over.

    Attributes:
        key: the first one for this reason at this stage.
        reason: why.
        count: how many were turned down for it, this one included.
    """

    key: SequenceKey
    reason: Reason
    count: int = 1
