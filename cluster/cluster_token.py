"""The token by which routers show a worker that they belong to its cluster.

Owns how it is made, carried and compared. It is drawn anew with each start of a service, and what
is printed of it is nothing. It knows no connection: it is a line of a call's metadata.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from typing import Any, Self

__all__ = ["ClusterToken"]

HEADER = "x-chairlift-cluster"
TOKEN_BYTES = 32


class ClusterToken:
    """What all parts of one service know, and nobody else."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(TOKEN_BYTES))

    def __repr__(self) -> str:
        return "ClusterToken(…)"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call carries."""
        return ((HEADER, self._text),)

    def admits(self, metadata: Iterable[Any] | None) -> bool:
        """Whether a call's metadata carry it; takes as long for a wrong one as for a right one."""
        given = dict(metadata or ()).get(HEADER, "")
        text = given if isinstance(given, str) else ""
        return hmac.compare_digest(text.encode(), self._text.encode())
