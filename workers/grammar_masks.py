"""Which tokens the sequences of a step may have next, found while their logits are computed.

Owns where each sequence stands in its grammar, which is known from its output alone: what is kept
from step to step saves time and nothing else, so a sequence that was preempted, or has come from
another replica, needs no special case, and all ranks find the same.

    runner   begin ─┬─ forward pass ────────────────────┬─ wait, mask, sample
    thread          └─ take the last token, find masks ─┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from chairlift.workers.grammars import Follower, Grammars
from chairlift.workers.sequence import Sequence, Status, StepPlan

__all__ = ["GrammarMasks", "Masks", "NoMasks"]


class Masks(Protocol):
    """What a runner asks at the begin of a step; it is called by one thread at a time."""

    def begin(self, plan: StepPlan) -> Callable[[], Mapping[int, bytes]]:
        """Start to look for the masks of a step.

        Returns:
            What waits for them: by index among the slices that sample, of the sequences with a
            grammar, ``Follower.mask``.
        """
        ...


def _nothing() -> Mapping[int, bytes]:
    return {}


class NoMasks:
    """Implements ``Masks`` where no sequence has a grammar."""

    def begin(self, plan: StepPlan) -> Callable[[], Mapping[int, bytes]]:
        return _nothing


class GrammarMasks:
    """Implements ``Masks``, in a thread of its own."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._followers: dict[Sequence, Follower] = {}  # the thread's

    def begin(self, plan: StepPlan) -> Callable[[], Mapping[int, bytes]]:
        sampling = (piece.sequence for piece in plan.slices if piece.samples)
        asked = {index: each for index, each in enumerate(sampling) if each.sampling.grammar}
        return self._thread.submit(self._find, asked).result if asked else _nothing

    def _find(self, asked: Mapping[int, Sequence]) -> Mapping[int, bytes]:
        ended = [each for each in self._followers if each.status is Status.FINISHED]
        for sequence in ended:
            del self._followers[sequence]
        return {index: self._mask(sequence) for index, sequence in asked.items()}

    def _mask(self, sequence: Sequence) -> bytes:
        follower = self._followers.get(sequence)
        if follower is None:
            try:
                follower = self._grammars.follow(sequence.sampling.grammar)
            except ValueError:  # of a rank that compiles what another one has compiled
                return b""
            self._followers[sequence] = follower
        follower.take(sequence.tokens[sequence.num_prompt + follower.num_tokens :])
        return follower.mask()
