"""In which order running sequences stand, who goes first in a step, and who yields to whom.

Owns that order: by class, and within a class by admission. Whoever needs something takes it only
from those that stand behind, so the first is never disturbed, and two never take from each other
in turn. It knows neither blocks nor budget.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import pairwise

from chairlift.cluster.protocol import Priority
from chairlift.workers.sequence import Sequence

__all__ = ["in_turn", "is_in_order", "seat", "victim_of"]


def seat(running: list[Sequence], sequence: Sequence) -> None:
    """Let a sequence that is admitted now stand behind its equals."""
    insort(running, sequence, key=_class)


def is_in_order(running: list[Sequence]) -> bool:
    return all(one.priority <= other.priority for one, other in pairwise(running))


def in_turn(running: list[Sequence]) -> list[Sequence]:
    """Who decodes, then who still has a prompt to compute; each in the order of ``running``.

    A prompt that waits for a block of a prompt before it does not wait in vain: all that are
    planned after the one that computes the block stand behind it, and cannot take it away.
    """
    decoding: list[Sequence] = []
    unfinished: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.num_pending == 1 else unfinished).append(sequence)
    return decoding + unfinished


def victim_of(running: list[Sequence], needy: Sequence, served: Callable[[str], float]) -> Sequence:
    """Who gives up its blocks: one that stands behind the needy one, or else that one itself.

    Of the lowest class there; in it, of the tenant that was served most; of its, the newest.
    """
    behind = running[running.index(needy) + 1 :]
    lowest = [each for each in reversed(behind) if each.priority == behind[-1].priority]
    return max(lowest, key=lambda each: served(each.tenant), default=needy)  # of equals the first


def _class(sequence: Sequence) -> Priority:
    return sequence.priority
