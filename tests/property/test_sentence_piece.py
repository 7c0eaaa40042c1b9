"""SentencePiece-style encoding against the algorithm as its paper has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.vocabularies import sentence_piece_metadata, tokenizer_of

PIECES = ("▁", "a", "b", "c", "ab", "▁a", "bc", "▁ab", "ca", "abc", "▁▁", "▁▁▁▁", "cab", "é")


def encode(text: str) -> list[str]:
    """Reference: merge the pair of neighbours that makes the best piece, the leftmost first."""
    if not text:
        return []
    symbols = list(("▁" + text).replace(" ", "▁"))
    while True:
        pairs = ["".join(symbols[at : at + 2]) for at in range(len(symbols) - 1)]
        ranked = [(PIECES.index(pair), at) for at, pair in enumerate(pairs) if pair in PIECES]
        if not ranked:
            break
        _, at = min(ranked)
        symbols[at : at + 2] = [pairs[at]]
    return [
        entry
        for symbol in symbols
        for entry in (
            [symbol] if symbol in PIECES else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        )
    ]


METADATA = sentence_piece_metadata(*PIECES)
TOKENIZER = tokenizer_of(METADATA)


@given(st.text("abc  é漢", max_size=30))
def test_the_best_piece_is_merged_first(text):
    tokens = METADATA["tokenizer.ggml.tokens"]
    ids = TOKENIZER.encode(text, add_special=False)
    assert [tokens[id_] for id_ in ids] == encode(text)
    assert TOKENIZER.decode(ids) == text
