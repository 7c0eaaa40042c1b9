"""What one router has still to be told, while the network is behind.

Owns the joining of the news of several steps into one message. It is bounded by what its router
knows of: tokens of its own open sequences, answers that it has asked for, and the names of one
prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import chain

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.block_names import NameChanges
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Answer, BlockEvents, Delta, LoadReport

__all__ = ["Outbox"]


class Outbox:
    """One stream's news. Answers go ahead of the deltas that they allow.

    The first message tells all names of blocks, and so does one after the router has missed so
    many changes that they are no shorter.
    """

    def __init__(self, most_names: int) -> None:
        """``most_names``: changes of names that are kept at most."""
        self._most_names = most_names
        self._answers: list[Answer] = []
        self._steps: list[list[Delta]] = []
        self._names = NameChanges()
        self._all_names = True
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._news = False
        self._under_way = False
        self._closed = False

    @property
    def told(self) -> bool:
        """Whether all news have been written."""
        return not self._news and not self._under_way

    def answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self.remind()

    def add(self, deltas: list[Delta]) -> None:
        """What one step did."""
        self._steps.append(deltas)
        self.remind()

    def note(self, events: BlockEvents) -> None:
        """Tell these with the next message; on their own they can wait for it."""
        if self._all_names:
            return
        self._names.add(events)
        if len(self._names) > self._most_names:
            self._names.take()
            self._all_names = True

    def remind(self) -> None:
        """Send a message soon, if only to tell the load."""
        self._news = True
        self._wake.set()

    def close(self) -> None:
        """Nothing comes after what is in here now."""
        self._closed = True
        self._wake.set()

    async def wait(self) -> bool:
        """Until there is something to send: True; or, after all was sent, until the end: False.

        To be called when what was taken before has been written.
        """
        self._under_way = False
        while not self._news:
            if self._closed:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    def take(self, load: LoadReport, names: Collection[int]) -> pb.FromWorker:
        """Empties the outbox into one message; ``names`` are all that there are of blocks."""
        blocks = BlockEvents(True, tuple(names)) if self._all_names else self._names.take()
        deltas = _join(self._steps)
        message = pb.FromWorker(
            answers=[wire.answer_to_wire(answer) for answer in self._answers],
            frame=wire_frame.frame_to_wire(deltas, load, blocks),
        )
        self._answers.clear()
        self._steps.clear()
        self._all_names = False
        self._news = False
        self._under_way = True
        self._taken.set()
        return message

    async def until_answers_at_most(self, limit: int) -> None:
        while len(self._answers) > limit:
            self._taken.clear()
            await self._taken.wait()


def _join(steps: list[list[Delta]]) -> list[Delta]:
    """What several steps did, as if one step had done it: a delta a sequence."""
    deltas = steps[0] if len(steps) == 1 else list(chain.from_iterable(steps))
    if len({delta.handle for delta in deltas}) == len(deltas):
        return deltas
    by_handle: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_handle.setdefault(delta.handle, []).append(delta)
    return [_join_deltas(deltas) for deltas in by_handle.values()]


def _join_deltas(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        handle=deltas[-1].handle,
        tokens=tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        finish=deltas[-1].finish,
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        prompt_logprobs=tuple(chain.from_iterable(delta.prompt_logprobs for delta in deltas)),
    )
