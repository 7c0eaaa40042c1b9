"""A listening socket whose port is shared, and that can leave it without harm.

Owns SO_REUSEPORT and what it takes to stop listening: connections that the kernel has given to
this socket, or is about to give it, would be reset when it closes, although others listen on the
same port. So it first turns deaf, which takes it out of the choice for new connections: their
first packet is dropped, and the client's kernel sends it again within a second, when the socket
is gone and another one is chosen. What had begun to connect before is accepted as usual.

    deaf ──► settled: handshakes done, queue empty ──► closed
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct

__all__ = ["has_waiting", "listen", "turn_deaf"]

BACKLOG = 2048

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


def turn_deaf(listener: socket.socket) -> None:
    """Ignore who begins to connect from now on; on Linux alone, elsewhere it does nothing."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN))
    program = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        pass


def has_waiting(listener: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
