"""Spellings of vocabularies."""

from __future__ import annotations

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.router.token_text import TokenText, WholeTexts, read_decoder
from support.vocabularies import byte_level_letter

BYTE_LEVEL = TokenText(byte_level=True, strips_space=False)
PIECES = TokenText(byte_level=False, strips_space=True)


def test_every_byte_has_a_letter_in_the_byte_level_alphabet():
    letters = [byte_level_letter(byte) for byte in range(256)]
    assert len(set(letters)) == 256
    assert [BYTE_LEVEL.to_bytes(letter) for letter in letters] == [bytes([b]) for b in range(256)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [("ĠHello", b" Hello"), ("Ċ", b"\n"), ("Ã©", "é".encode()), ("æ¼", b"\xe6\xbc")],
)
def test_byte_level_entries_are_spelt_in_bytes(entry, expected):
    assert BYTE_LEVEL.to_bytes(entry) == expected


@pytest.mark.parametrize("entry", ["漢字", "a b", "soft\u00adhyphen", "\u007f"])
def test_an_entry_with_another_letter_is_plain_text(entry):
    assert BYTE_LEVEL.to_bytes(entry) == entry.encode()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("▁▁the", b"  the"),
        ("é", "é".encode()),
        ("<0x0A>", b"\n"),
        ("<0xfF>", b"\xff"),
        ("<0xG0>", b"<0xG0>"),
        ("x<0x0A>", b"x<0x0A>"),
    ],
)
def test_pieces_are_text_or_one_byte(entry, expected):
    assert PIECES.to_bytes(entry) == expected


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        ({"type": "ByteLevel", "use_regex": True}, BYTE_LEVEL),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}, PIECES),
        (
            {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]},
            TokenText(byte_level=False, strips_space=False),
        ),
    ],
)
def test_the_spelling_is_read_off_the_decoder(decoder, expected):
    assert read_decoder(decoder) == expected


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        ({"type": "WordPiece", "prefix": "##"}, "WordPiece"),
        ({"type": "Sequence", "decoders": [FALLBACK, FUSE]}, "ByteFallback + Fuse"),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, {**STRIP, "start": 2}]}, "Str"),
    ],
)
def test_a_decoder_that_would_be_followed_wrongly_is_refused(decoder, named):
    with pytest.raises(ModelError, match=named.replace("+", r"\+")):
        read_decoder(decoder)


def test_whole_texts_are_those_of_tokens_whose_bytes_are_whole_characters():
    entries = {1: b"ab", 2: "é".encode(), 3: b"\xc3", 4: b"a\xc3", 5: b"\xff"}
    texts = WholeTexts(lambda id_: entries.get(id_, b""))
    assert [texts[id_] for id_ in range(7)] == ["", "ab", "é", None, None, None, ""]
    assert [texts[id_] for id_ in (1, 3)] == ["ab", None]  # as before


def test_whole_texts_remember_no_ids_outside_the_vocabulary():
    texts = WholeTexts(lambda id_: b"")
    assert [texts[id_] for id_ in range(100)] == [""] * 100
    assert len(texts) == 0
