"""What text a vocabulary's entries stand for, as bytes.

Owns the two ways in which models of the Llama family spell bytes in their vocabulary, and reads
off a tokenizer's decoder which of them it uses. A token may hold half a character, so tokens
stand for bytes; only their sequence is text. It knows no ids and keeps no state.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.cluster.errors import ModelError

__all__ = ["TokenText", "WholeTexts", "read_decoder"]

_PIECES = (
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[int, int]:
    """Letter → byte, both as code points, for entries of which each letter is a byte (GPT-2).

    The printable bytes of Latin-1 stand for themselves, the others for the code points from 256
    on, in order. Those others are no letters; they map beyond Latin-1, so that an entry that
    holds one cannot be encoded as Latin-1.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {256 + index: byte for index, byte in enumerate(hidden)} | dict.fromkeys(hidden, 0xFFFF)


_BYTE_LETTERS = _byte_letters()


@dataclass(frozen=True, slots=True)
class TokenText:
    """How the entries of one vocabulary are spelt.

    Attributes:
        byte_level: each letter of an entry is one byte; else an entry is text with ``▁`` for a
            space, or one byte as ``<0x0A>``.
        strips_space: a space at the begin of the text is dropped, because encoding put it there.
    """

    byte_level: bool
    strips_space: bool

    def to_bytes(self, entry: str) -> bytes:
        """What the entry stands for."""
        if not self.byte_level:
            byte = _BYTE_PIECE.fullmatch(entry)
            return bytes.fromhex(byte[1]) if byte else entry.replace("▁", " ").encode()
        try:
            return entry.translate(_BYTE_LETTERS).encode("latin-1")
        except UnicodeEncodeError:
            return entry.encode()  # not in letters, so it is plain text


class WholeTexts(dict[int, str | None]):
    """Token → its text, or None where its bytes are no whole characters; filled as tokens come."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes

    def __missing__(self, id_: int) -> str | None:
        text: str | None = None
        data = self._token_bytes(id_)
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode()
        if data:  # what has none may be outside the vocabulary, and there is no end of those
            self[id_] = text
        return text


def read_decoder(decoder: Mapping[str, Any]) -> TokenText:
    """The spelling that a decoder of the ``tokenizers`` library, given as JSON, undoes.

    Raises:
        ModelError: it is neither byte-level nor SentencePiece-style.
    """
    if decoder["type"] == "ByteLevel":
        return TokenText(byte_level=True, strips_space=False)
    steps = tuple(decoder.get("decoders", ()))
    if steps in (_PIECES, (*_PIECES, _STRIP)):
        return TokenText(byte_level=False, strips_space=steps[-1] == _STRIP)
    shown = " + ".join(step["type"] for step in steps) or decoder["type"]
    raise ModelError(f"the tokenizer's decoder ({shown}) is not supported")
