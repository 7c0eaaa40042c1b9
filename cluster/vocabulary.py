"""A model's tokens as bytes, for who has to know what they spell.

Owns the shape only: ``router.tokenizer`` reads vocabularies, ``workers.grammars`` asks which
tokens spell what may come next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Vocabulary"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token by its id.

    Attributes:
        tokens: what each adds to a text; empty for an id without a token.
        special: marks for the model, which are no text.
        encode: text → tokens that spell exactly this, as the model would be given them.
    """

    tokens: tuple[bytes, ...]
    special: frozenset[int]
    encode: Callable[[str], list[int]]
