"""The ranks of a tensor-parallel group, and how they reach each other.

Owns every exchange between ranks and the order in which parts are added: that of the ranks,
whatever the transport, so that a sum has the same bits on every rank and every time. Owns also who
counts as lost. Knows nothing of models: who holds which columns is ``shards.py``, what the ranks
tell each other is ``ranks.py``.

- ``shared``: CPU ranks on one node, through memory (``kernels/cpu/group.cpp``)
- ``gloo``: CPU ranks on several nodes
- ``nccl``: GPUs; what is not a tensor goes by gloo

A rank is lost when it has left, when its connection breaks, or when it has been silent for a
second. A thread of each rank beats for it, so one that computes for long is not silent. After a
fault a group is of no more use; all that it can do is to say so again.
"""

from __future__ import annotations

import ctypes
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from chairlift.cluster.config import cache_folder
from chairlift.cluster.errors import StartupError
from chairlift.kernels.cpu.build import BuildError, build
from chairlift.kernels.cpu.library import GroupLibrary, address
from chairlift.workers.rank_beats import BEAT_S, SILENT_BEATS, RankBeats, meet
from chairlift.workers.rank_faults import RankFault, RankLost, RanksDiffer

__all__ = [
    "Alone",
    "Group",
    "Rendezvous",
    "SharedMemoryGroup",
    "TorchGroup",
    "Transport",
    "join",
    "new_address",
]

Transport = Literal["shared", "gloo", "nccl"]

# Longer messages go in pieces; two of them a rank stay in a core's own cache.
_ROOM = 1 << 16
_SHARED_FOLDER = "/dev/shm"  # nosec B108  # names in it are random, and files for us alone

# Nobody calls for an idle group to end, so its waits end with the group only.
_FOR_EVER = timedelta(days=365)
# A message up to this size travels together with its length.
_FIRST_BYTES = 4096


class Group(Protocol):
    """One rank's seat. Every rank makes the same calls in the same order, from one thread.

    Every call raises ``RankLost`` when a rank is lost, and ``RanksDiffer`` when the ranks are
    seen not to do the same.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def handle(self) -> int | None:
        """For kernels that sum up in C++, or None; what their sums return goes to ``check``."""

    def check(self, fault: int, /) -> None:
        """Raise what a sum in C++ has returned, unless it is 0."""

    def sum(self, x: Tensor) -> None:
        """In place: x of rank 0 + x of rank 1 + …, in this order; the same bits on every rank."""

    def gather(self, part: Tensor, out: Tensor) -> None:
        """``out`` (rows, all widths) = ``part`` (rows, own width) of each rank, side by side."""

    def share(self, message: bytes | None) -> bytes:
        """What rank 0 gives, on every rank; waits for the others for as long as they live."""

    def agree(self, digest: int) -> None:
        """Raises ``RanksDiffer`` on every rank unless all have the same 64 bits."""

    def close(self) -> None:
        """From any thread: the present or next call of every rank raises ``RankLost``."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a rank meets the others.

    ``address`` is what ``new_address`` made on the node of rank 0: a file, or host:port.
    """

    rank: int
    size: int
    transport: Transport
    address: str
    timeout_s: float


def new_address(transport: Transport, host: str = "127.0.0.1") -> str:
    """An address for a new group, made on the node of rank 0; ``host`` is its name for the rest."""
    if transport == "shared":
        return f"{_SHARED_FOLDER}/chairlift-{secrets.token_hex(8)}"
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{host}:{free.getsockname()[1]}"


def join(rendezvous: Rendezvous) -> Group:
    """Take the seat and wait for all others, who may come in any order.

    Raises:
        RankLost: a rank has not come in time; says which.
        RanksDiffer: the rank is taken, or the ranks do not agree on their number.
        StartupError: the transport cannot be had on this machine.
    """
    if rendezvous.size == 1:
        return Alone()
    if rendezvous.transport == "shared":
        return SharedMemoryGroup(rendezvous)
    return TorchGroup(rendezvous)


class Alone:
    """A group of one."""

    rank = 0
    size = 1
    handle: int | None = None

    def check(self, fault: int, /) -> None:
        """Nothing is summed up."""

    def sum(self, x: Tensor) -> None:
        """It is the sum already."""

    def gather(self, part: Tensor, out: Tensor) -> None:
        if out is not part:
            out.copy_(part)

    def share(self, message: bytes | None) -> bytes:
        return _given(message)

    def agree(self, digest: int) -> None:
        """With itself."""

    def close(self) -> None:
        """Nobody is there to find out."""


class SharedMemoryGroup:
    """Ranks on the CPUs of one node. Tensors are float32 and contiguous.

    The waiting and adding is done in C++; other Python threads run meanwhile.
    """

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        try:
            self._library = GroupLibrary(
                build(cache_folder()), rendezvous.address, self.rank, self.size, _ROOM
            )
        except BuildError as error:
            raise StartupError(f"tensor parallelism in shared memory: {error}") from None
        except OSError as error:
            message = f"cannot share memory in {Path(rendezvous.address).parent}: {error.strerror}"
            raise StartupError(message) from None
        self.handle: int | None = self._library.handle
        self.check(self._library.call("join", rendezvous.timeout_s))

    def sum(self, x: Tensor) -> None:
        self.check(self._library.call("sum", address(x, *x.shape), x.numel()))

    def gather(self, part: Tensor, out: Tensor) -> None:
        (rows, width), total = part.shape, out.shape[1]
        parts = address(part, rows, width), rows, width
        self.check(self._library.call("gather", *parts, address(out, rows, total), total))

    def share(self, message: bytes | None) -> bytes:
        given = _given(message) if self.rank == 0 else b""
        length = ctypes.c_long(len(given))
        self.check(self._library.call("share", given, ctypes.byref(length)))
        return given if self.rank == 0 else self._library.message(length.value)

    def agree(self, digest: int) -> None:
        self.check(self._library.call("agree", digest))

    def close(self) -> None:
        self._library.leave()

    def check(self, fault: int, /) -> None:
        """Raise what a call in C++ has returned, unless it is 0."""
        if fault < 0:
            raise RanksDiffer("the ranks do not do the same, or do not agree")
        if fault > 0:
            raise _lost(fault - 1, self.rank)


class TorchGroup:
    """Ranks on several nodes, or on GPUs. Tensors are on the CPU for gloo, on a GPU for NCCL.

    The parts of a sum are collected and then added in order, in float32 and rounded once.
    """

    handle: int | None = None

    def check(self, fault: int, /) -> None:
        """Nothing is summed up in C++."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self._fault: RankFault | None = None
        self._widths: dict[int, list[int]] = {}  # of each rank, by their sum
        store, beats = meet(
            rendezvous.address, self.rank, self.size, timeout_s=rendezvous.timeout_s
        )
        try:
            self._control: Any = _gloo(store, rendezvous)
            self._tensors: Any = self._control
            if rendezvous.transport == "nccl":
                self._tensors = _nccl(store, rendezvous)
        except RuntimeError as error:
            raise RankLost(f"the ranks cannot connect: {error}") from error
        self._store = store  # rank 0 keeps it for all
        self._beats = RankBeats(beats, self.rank, self.size, self._abort)

    def sum(self, x: Tensor) -> None:
        first, *others = self._collect(x)
        total = first.float()
        for part in others:
            total += part
        x.copy_(total)

    def gather(self, part: Tensor, out: Tensor) -> None:
        total = out.shape[1]
        if total not in self._widths:  # at the first call only, so never while a graph is captured
            width = torch.tensor([part.shape[1]])
            self._widths[total] = [int(w) for w in self._collect(width)]
        widths = self._widths[total]
        if sum(widths) != total or widths[self.rank] != part.shape[1]:
            raise self._fail(RanksDiffer(f"parts {widths} wide cannot make {total} columns"))
        padded = part.new_zeros(part.shape[0], max(widths))
        padded[:, : part.shape[1]] = part
        parts = self._collect(padded)
        torch.cat([p[:, :w] for p, w in zip(parts, widths, strict=True)], dim=1, out=out)

    def share(self, message: bytes | None) -> bytes:
        given = _given(message) if self.rank == 0 else b""
        first = bytearray(_FIRST_BYTES)
        head = len(given).to_bytes(8, "little") + given[: _FIRST_BYTES - 8]
        first[: len(head)] = head
        self._broadcast(first)
        length = int.from_bytes(first[:8], "little")
        rest = bytearray(given[_FIRST_BYTES - 8 :]) or bytearray(max(0, length + 8 - _FIRST_BYTES))
        if rest:
            self._broadcast(rest)
        return bytes(first[8 : 8 + length]) + bytes(rest)

    def agree(self, digest: int) -> None:
        digests = self._collect(torch.tensor([digest - (1 << 63)]))
        if any(int(other) != int(digests[0]) for other in digests):
            raise self._fail(RanksDiffer("the ranks do not agree"))

    def close(self) -> None:
        self._fail(RankLost(f"rank {self.rank} has left"))

    def _collect(self, x: Tensor) -> list[Tensor]:
        """``x`` of every rank, in order of rank."""
        all_of_it = x.new_empty(self.size, *x.shape)
        parts = list(all_of_it)
        if x.is_cuda:  # the stream waits, not we
            self._check()
            self._tensors._allgather_base(all_of_it, x.contiguous()).wait()
        else:
            self._finish(lambda: self._control.allgather([parts], [x.contiguous()]))
        return parts

    def _broadcast(self, buffer: bytearray) -> None:
        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        self._finish(lambda: self._control.broadcast(tensor, 0))

    def _finish(self, start: Callable[[], Any]) -> None:
        """Wait for what is started, but not for a rank that is lost.

        Rank 0 keeps the beats. When it stands still, so does the thread that reads them: beats
        that stay away are silence too.
        """
        self._check()
        count, silent = self._beats.count, 0
        try:
            work = start()
            while True:
                ended = work.is_completed()
                try:
                    work.wait(timedelta(seconds=BEAT_S))
                    return
                except RuntimeError:
                    if ended:  # so this is more than the end of our patience
                        raise
                self._check()
                silent = silent + 1 if self._beats.count == count else 0
                count = self._beats.count
                if silent > SILENT_BEATS:
                    raise self._fail(_lost(0, self.rank))
        except RuntimeError as error:
            # Who it was the beats may tell, but not yet.
            raise self._fail(RankLost(f"a connection between ranks broke: {error}")) from error

    def _check(self) -> None:
        lost = self._beats.lost
        if self._fault is None and lost is not None:
            self._fail(_lost(lost, self.rank))
        if self._fault is not None:
            raise self._fault

    def _fail(self, fault: RankFault) -> RankFault:
        """The first fault stays; the others find out from the beats."""
        if self._fault is None:
            self._fault = fault
            self._beats.leave()
            # A call that still waits for a lost rank has a thread that cannot be ended, and whoever
            # let go of its group would wait for that: so nobody does, not even at exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._control))
        return self._fault

    def _abort(self) -> None:
        """A kernel that waits for a lost rank would keep the GPU for ever."""
        if self._tensors is not self._control:
            end = getattr(self._tensors, "abort", None) or self._tensors._shutdown  # before 2.6
            end()


def _gloo(store: Any, rendezvous: Rendezvous) -> Any:
    """Connections between all ranks, over the interface that leads to rank 0."""
    host, port = rendezvous.address.rsplit(":", 1)
    family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect(place)
        own = route.getsockname()[0]
    groups: Any = dist  # its stubs lack what is below
    options = groups.ProcessGroupGloo._Options()
    options._devices = [groups.ProcessGroupGloo.create_device(hostname=own)]
    options._timeout = _FOR_EVER
    place = groups.PrefixStore("gloo", store)
    return groups.ProcessGroupGloo(place, rendezvous.rank, rendezvous.size, options)


def _nccl(store: Any, rendezvous: Rendezvous) -> Any:
    groups: Any = dist
    options = groups.ProcessGroupNCCL.Options()
    place = groups.PrefixStore("nccl", store)
    return groups.ProcessGroupNCCL(place, rendezvous.rank, rendezvous.size, options)


def _given(message: bytes | None) -> bytes:
    if message is None:
        raise ValueError("rank 0 has to give a message")
    return message


def _lost(rank: int, own: int) -> RankLost:
    return RankLost(f"rank {rank} has left" if rank == own else f"rank {rank} is lost")
