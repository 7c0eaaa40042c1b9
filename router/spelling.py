"""How a text is spelt in tokens when it stands in the middle of another.

Owns the check that tokens spell the very text, and the plain way where they do not: tokenizers put
a space before a text, and see marks for the model in what is meant as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

__all__ = ["Speller"]


class Speller:
    """Spells texts.

    Args:
        encode: as the model was trained to see a text of its own.
        tokens: what each token adds to a text, by id.
        special: tokens that are no text.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        tokens: Sequence[bytes],
        special: frozenset[int],
    ) -> None:
        self._encode = encode
        self._tokens = tokens
        self._special = special

    def spell(self, text: str) -> list[int]:
        """Tokens that add exactly this; fewer where the vocabulary lacks bytes of it."""
        ids = self._encode(text)
        wanted = text.encode()
        if not self._special.isdisjoint(ids) or self._text(ids) != wanted:
            return self._longest_first(wanted)
        return ids

    def _text(self, ids: list[int]) -> bytes:
        return b"".join(self._tokens[id_] for id_ in ids)

    def _longest_first(self, wanted: bytes) -> list[int]:
        ids, start, longest = [], 0, max(map(len, self._ids))
        while start < len(wanted):
            ends = range(min(len(wanted), start + longest), start, -1)
            end = next((end for end in ends if wanted[start:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[wanted[start:end]])
            start = end
        return ids

    @cached_property
    def _ids(self) -> Mapping[bytes, int]:
        return {
            token: id_
            for id_, token in enumerate(self._tokens)
            if token and id_ not in self._special
        }
