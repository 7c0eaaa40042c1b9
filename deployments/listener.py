"""A listening socket whose port is shared, and that can leave it without harm.

Owns SO_REUSEPORT and what it takes to stop listening: connections that the kernel has given to
this socket, or is about to give it, would be reset when it closes, although others listen on the
same port. So it first turns deaf, which takes it out of the choice for new connections: their
first packet is dropped, and the client's kernel sends it again within a second, when the socket
is gone and another one is chosen. What had begun to connect before is accepted as usual.

    deaf ──► settled: handshakes done, queue empty ──► closed

A socket that a library keeps to itself is reached by its descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import socket
import stat
import struct
from collections.abc import Iterable, Iterator

__all__ = [
    "has_connections",
    "listen",
    "listening_descriptors",
    "settle",
    "stop_listening",
]

BACKLOG = 2048
SETTLE_S = 0.25
"""For handshakes that are under way when a server leaves: more than a round trip."""
WAITING_S = 2.0
"""How long connections may take that wait to be accepted."""
TICK_S = 0.01

_SO_ATTACH_FILTER = 26
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the flags of the TCP header
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # then drop it
    (0x06, 0, 0, 0xFFFF_FFFF),  # else pass it whole
)
"""A classic BPF program, from ``linux/filter.h``: code, jump if true, jump if false, operand."""


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError when the port is taken by somebody who does not share it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


async def settle(listeners: Iterable[socket.socket]) -> None:
    """Turn them deaf, and wait until all who had begun to connect have been accepted."""
    listeners = list(listeners)
    for listener in listeners:
        _turn_deaf(listener)
    await asyncio.sleep(SETTLE_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAITING_S):
            while any(map(_has_waiting, listeners)):  # noqa: ASYNC110  # the kernel tells nobody
                await asyncio.sleep(TICK_S)
    await asyncio.sleep(TICK_S)  # what was accepted last is under way before its server closes


def listening_descriptors() -> frozenset[int]:
    """Of all sockets of this process that listen; on Linux alone, elsewhere it finds none."""
    return frozenset(filter(_listens, _descriptors()))


async def stop_listening(descriptors: Iterable[int]) -> None:
    """Settle sockets that belong to somebody else, and take them off the port without closing."""
    with contextlib.ExitStack() as stack:
        copies = [stack.enter_context(socket.socket(fileno=os.dup(each))) for each in descriptors]
        await settle(copies)
        for copy in copies:
            copy.shutdown(socket.SHUT_RD)


def has_connections(port: int) -> bool:
    """Whether this process has a connection that came by ``port``; on Linux alone."""
    return any(_port_of_connection(each) == port for each in _descriptors())


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def _listens(descriptor: int) -> bool:
    with _copied(descriptor) as copy:
        return copy is not None and bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _port_of_connection(descriptor: int) -> int | None:
    with _copied(descriptor) as copy, contextlib.suppress(OSError):
        if copy is not None and copy.family in (socket.AF_INET, socket.AF_INET6):
            copy.getpeername()  # or it is no connection
            return int(copy.getsockname()[1])
    return None


@contextlib.contextmanager
def _copied(descriptor: int) -> Iterator[socket.socket | None]:
    """The socket behind a descriptor; None where there is none, or none any more."""
    copy = None
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            copy = socket.socket(fileno=os.dup(descriptor))
    try:
        yield copy
    finally:
        if copy is not None:
            copy.close()


def _turn_deaf(listener: socket.socket) -> None:
    """Ignore who begins to connect from now on; on Linux alone, elsewhere it does nothing."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN))
    program = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        pass


def _has_waiting(listener: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
