"""The token by which routers show a worker that they belong to its cluster.

Owns how it is made, found, carried and compared. What is printed of it is nothing. It knows no
connection: it is a line of a call's metadata.

One service on one machine draws it anew with each start. On many nodes each process finds it on
its own, so that it is in no configuration, and in nothing that Ray keeps.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from chairlift.cluster.errors import ConfigError

__all__ = ["ClusterToken"]

HEADER = "x-chairlift-cluster"
TOKEN_BYTES = 32
MIN_LENGTH = 32
"""Characters: of random hexadecimal digits, 128 bits."""


class ClusterToken:
    """What all parts of one service know, and nobody else.

    There may be several words, while one takes another's place: the first is shown, and whoever
    shows any of them is admitted.
    """

    __slots__ = ("_file", "_words")

    def __init__(self, *words: str, file: Path | None = None) -> None:
        """Of these words; those of ``file``, from now on, where it is one with words."""
        self._words = words
        self._file = file

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(TOKEN_BYTES))

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Of words with white space between.

        Raises ConfigError, which names the source and no word.
        """
        return cls(*_parse(text, source))

    @classmethod
    def from_file(cls, file: Path, source: str) -> Self:
        """Of a file, which is read again with each use: a broken one leaves in force what was.

        Raises ConfigError, which names the source.
        """
        return cls(*_read(file, source), file=file)

    def __repr__(self) -> str:
        return "ClusterToken(…)"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call carries."""
        return ((HEADER, self._newest()[0]),)

    def admits(self, metadata: Iterable[Any] | None) -> bool:
        """Whether a call's metadata carry it; takes as long for a wrong one as for a right one."""
        given = dict(metadata or ()).get(HEADER, "")
        text = (given if isinstance(given, str) else "").encode()
        return any([hmac.compare_digest(text, word.encode()) for word in self._newest()])

    def _newest(self) -> tuple[str, ...]:
        if self._file is not None:
            with contextlib.suppress(ConfigError):
                self._words = _read(self._file, "")
        return self._words


def _read(file: Path, source: str) -> tuple[str, ...]:
    try:
        text = file.read_text("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"{source}: {file}: {error.strerror}") from None
    return _parse(text, source)


def _parse(text: str, source: str) -> tuple[str, ...]:
    words = tuple(text.split())
    if not words:
        raise ConfigError(f"{source}: it is empty; `openssl rand -hex 32` makes a token")
    for word in words:
        if len(word) < MIN_LENGTH or not (word.isascii() and word.isprintable()):
            raise ConfigError(
                f"{source}: a token has {MIN_LENGTH} or more letters and digits; "
                "`openssl rand -hex 32` makes one"
            )
    return words
