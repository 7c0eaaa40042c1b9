"""The part of torch.cuda that streams and events are made of, as late or as early as they allow.

Each stream is a list of what is to be done; nothing happens before somebody waits for it, or, if
copies are eager, before they may. Tensors are on the CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

Operation = Callable[[], bool]
"""Does its work and returns True, or returns False because it must wait."""


class Stream:
    def __init__(self, device: object = None) -> None:
        self.operations: deque[Operation] = deque()

    def wait_event(self, event: Event) -> None:
        ticket = event.recorded
        self.operations.append(lambda: event.done >= ticket)

    def go_on(self) -> bool:
        """As far as it can; whether that was any way at all."""
        moved = False
        while self.operations and self.operations[0]():
            self.operations.popleft()
            moved = True
        return moved


class Event:
    """``cuda`` is set by the one that makes it."""

    cuda: LazyCuda

    def __init__(self) -> None:
        self.recorded = self.done = 0

    def record(self, stream: Stream | None = None) -> None:
        self.recorded += 1
        ticket = self.recorded

        def reach() -> bool:
            self.done = ticket
            return True

        self.cuda.queue(reach, stream)

    def synchronize(self) -> None:
        ticket = self.recorded
        while self.done < ticket:
            assert self.cuda.go_on(), "this event never comes"


class LazyTensor(torch.Tensor):
    """Copies to it are operations of the current stream."""

    cuda: LazyCuda

    # The stubs say that a copy gives the caller's own type, of which they know no subclass.
    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> LazyTensor:  # type: ignore[override]
        target, plain = self.as_subclass(torch.Tensor), source.as_subclass(torch.Tensor)

        def copy() -> bool:
            target.copy_(plain)
            return True

        self.cuda.queue(copy)
        return self


class LazyCuda:
    """Stands in for torch, as far as ``workers.device_queue`` asks for it.

    Args:
        eager: copies happen as soon as their stream lets them, and not as late as possible.
    """

    int64 = torch.int64
    from_numpy = staticmethod(torch.from_numpy)

    def __init__(self, eager: bool) -> None:
        self.computing = Stream()
        self._eager = eager
        self._current = self.computing
        self._others: list[Stream] = []
        event = type("Event", (Event,), {"cuda": self})
        self._tensor = type("LazyTensor", (LazyTensor,), {"cuda": self})
        self.cuda = SimpleNamespace(
            Stream=self._new_stream,
            Event=event,
            stream=self._within,
            device=lambda device: nullcontext(),
            current_stream=lambda device: self._current,
            graph_pool_handle=lambda: None,
        )

    def empty(self, *size: int, **_: Any) -> torch.Tensor:
        return torch.full(size, -1).as_subclass(self._tensor)

    def empty_like(self, tensor: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.empty(*tensor.shape)

    def queue(self, operation: Operation, stream: Stream | None = None) -> None:
        (stream or self._current).operations.append(operation)
        if self._eager:
            for each in self._others:
                each.go_on()

    def compute(self, work: Callable[[], None]) -> None:
        """Queue work of a kernel."""
        self.queue(lambda: work() is None, self.computing)

    def go_on(self) -> bool:
        """One step of the computing stream, and before it only what that waits for."""
        if self.computing.operations and self.computing.operations[0]():
            self.computing.operations.popleft()
            return True
        return any([each.go_on() for each in self._others])

    def _new_stream(self, device: object) -> Stream:
        self._others.append(Stream())
        return self._others[-1]

    @contextmanager
    def _within(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before
