"""How a block of the KV cache is named, so that routers and workers mean the same by a name.

Owns the digest: a full block is named by the block before it and its own tokens, the first one by
the cache salt as well. So equal names mean equal prefixes, whole, and under one salt. Owns also
the account of names that come and go, on their way from a pool to the routers.

    salt ─► digest(salt) ─► digest(·, tokens 0 … 15) ─► digest(·, tokens 16 … 31) ─► …
                              block 0                     block 1
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from chairlift.cluster.protocol import BlockEvents

__all__ = ["NameChanges", "extend_names", "short_name", "short_names"]

_DIGEST_BYTES = 32


def extend_names(
    names: list[bytes], tokens: Sequence[int], salt: str, block_size: int, count: int
) -> None:
    """Append to the names of a prefix's first blocks until there are ``count``."""
    for start in range(len(names) * block_size, count * block_size, block_size):
        parent = names[-1] if names else _digest(salt.encode())
        content = array("Q", tokens[start : start + block_size])
        names.append(_digest(parent + content.tobytes()))


def short_name(name: bytes) -> int:
    """64 bits of a name: enough to guess by, not enough to share blocks by."""
    return int.from_bytes(name[:8], "little")


def short_names(tokens: Sequence[int], salt: str, block_size: int) -> tuple[int, ...]:
    """The short names of all blocks that ``tokens`` fill."""
    names: list[bytes] = []
    extend_names(names, tokens, salt, block_size, len(tokens) // block_size)
    return tuple(map(short_name, names))


class NameChanges:
    """Short names that came or went since they were last taken; what undid itself stands in none.

    So it holds no more than the names that there are now, and those that there were then.
    """

    def __init__(self) -> None:
        self._there: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._there)

    def came(self, name: int) -> None:
        if self._there.pop(name, True):
            self._there[name] = True

    def went(self, name: int) -> None:
        if not self._there.pop(name, False):
            self._there[name] = False

    def add(self, events: BlockEvents) -> None:
        """Let what these events tell happen after what has happened so far."""
        for name in events.removed:
            self.went(name)
        for name in events.added:
            self.came(name)

    def take(self) -> BlockEvents | None:
        """All changes, which are then forgotten; None when there are none."""
        if not self._there:
            return None
        there, self._there = self._there, {}
        return BlockEvents(
            added=tuple(name for name, is_there in there.items() if is_there),
            removed=tuple(name for name, is_there in there.items() if not is_there),
        )


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
