"""Incremental decoding with stop strings."""

from __future__ import annotations

import pytest

from chairlift.router.detokenizer import Detokenizer
from support.vocabularies import byte_level_metadata, sentence_piece_metadata, tokenizer_of

BYTES = tokenizer_of(byte_level_metadata("a b"))
PIECES = tokenizer_of(sentence_piece_metadata("▁", "a", "▁a"))
BEGIN, END, BYTE_0 = 0, 1, 2
AB = BYTE_0 + 256
SPACE, A, SPACE_A = 259, 260, 261


def byte_tokens(data: bytes) -> list[int]:
    return [BYTE_0 + byte for byte in data]


def test_a_character_is_sent_with_its_last_byte():
    detokenizer = Detokenizer(BYTES)
    sent = [detokenizer.feed([token]) for token in byte_tokens("é🙂".encode())]
    assert sent == ["", "é", "", "", "", "🙂"]
    assert detokenizer.finish() == ""
    assert detokenizer.num_tokens == 6


def test_a_character_that_never_completes_becomes_one_replacement_at_the_end():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed(byte_tokens(b"a\xf0\x9f\x99")) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_bytes_are_replaced_once_the_next_token_proves_them_wrong():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed(byte_tokens(b"\xf0\x9f")) == ""
    assert detokenizer.feed([AB]) == "\ufffdab"


def test_special_tokens_and_unknown_ids_have_no_text_but_count():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed([BEGIN, AB, 100_000, END]) == "ab"
    assert detokenizer.num_tokens == 4


def test_a_whole_token_within_a_character_ends_it():
    first, _ = byte_tokens("é".encode())
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.feed([token]) for token in [AB, first, AB, AB]] == [
        "ab",
        "",
        "\ufffdab",
        "ab",
    ]
    assert not detokenizer.in_character


def test_a_special_token_does_not_break_a_character_apart():
    first, second = byte_tokens("é".encode())
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed([first, END, second]) == "é"


def test_only_the_first_space_of_a_sentence_piece_text_is_dropped():
    detokenizer = Detokenizer(PIECES)
    assert [detokenizer.feed([token]) for token in [SPACE, SPACE_A, A]] == ["", " a", "a"]


def test_byte_pieces_make_characters():
    detokenizer = Detokenizer(PIECES)
    sent = [detokenizer.feed([token]) for token in PIECES.encode("漢", add_special=False)[1:]]
    assert sent == ["", "", "漢"]


def test_the_token_that_completes_a_stop_string_is_the_last_that_counts():
    detokenizer = Detokenizer(BYTES, stop=("b!",))
    assert detokenizer.feed([*byte_tokens(b"x"), AB, *byte_tokens(b"!yz")]) == "xa"
    assert detokenizer.stopped
    assert detokenizer.num_tokens == 3
    assert detokenizer.feed([AB]) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.num_tokens == 3


def test_finish_returns_withheld_text_and_a_broken_character():
    detokenizer = Detokenizer(BYTES, stop=("abc",))
    assert detokenizer.feed([AB, *byte_tokens(b"\xc3")]) == ""
    assert detokenizer.finish() == "ab\ufffd"
    assert not detokenizer.stopped


def test_a_replacement_character_at_the_end_can_complete_a_stop_string():
    detokenizer = Detokenizer(BYTES, stop=("b\ufffd",))
    assert detokenizer.feed([AB, *byte_tokens(b"\xc3")]) == "a"
    assert detokenizer.finish() == ""
    assert detokenizer.stopped


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Detokenizer(BYTES, stop=("",))
