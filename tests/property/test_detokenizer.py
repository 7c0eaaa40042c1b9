"""Streams of random tokens against plain decoding and a plain search for stop strings."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.gguf_file import GgufFile
from chairlift.router.detokenizer import Detokenizer
from chairlift.router.tokenizer import Tokenizer
from chairlift.router.tokenizer_gguf import GgufVocabulary, build_tokenizer
from support.vocabularies import (
    byte_level_metadata,
    embedded_model,
    sentence_piece_metadata,
    tokenizer_of,
)

METADATA = {
    "byte-level": byte_level_metadata("a b", "Ġ a", "Ã ©", "Ġa b", own=["<own>", "  "]),
    "sentence-piece": sentence_piece_metadata("▁", "a", "b", "▁a", "ab", "é", "漢", own=["<own>"]),
    "embedded": GgufFile.open(embedded_model()).metadata,
}
VOCABULARIES = [pytest.param(tokenizer_of(found), id=name) for name, found in METADATA.items()]
LIBRARY = [
    pytest.param(tokenizer_of(found), build_tokenizer(GgufVocabulary.read(found)), id=name)
    for name, found in METADATA.items()
]
CHARACTERS = "aab  \né漢🙂\ufffd"


def tokens_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Random ids (some beyond the vocabulary) mixed with the tokens of real text."""
    noise = st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=8)
    text = st.text(CHARACTERS, max_size=12).map(
        lambda text: tokenizer.encode(text, add_special=False)
    )
    parts = st.lists(noise | text, max_size=6)
    return parts.map(lambda parts: [token for part in parts for token in part])


@st.composite
def chunks(draw: st.DrawFn, tokens: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=len(tokens))))
    return [tokens[i:j] for i, j in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]


@st.composite
def stop_strings(draw: st.DrawFn, text: str) -> tuple[str, ...]:
    """Random ones, and ones that stand in the text or almost do."""

    @st.composite
    def cut(draw: st.DrawFn) -> str:
        start = draw(st.integers(0, max(len(text) - 1, 0)))
        return text[start : start + draw(st.integers(1, 6))] + draw(st.sampled_from(["", "", "a"]))

    some = st.text(CHARACTERS, min_size=1, max_size=4) | cut().filter(bool)
    return tuple(draw(st.lists(some, max_size=4)))


@dataclass(frozen=True)
class Expected:
    text: str
    stopped: bool


def cut_at_stop(text: str, stops: tuple[str, ...]) -> Expected:
    """Reference: the stop string with the earliest end; of those, the longest."""
    for end in range(1, len(text) + 1):
        completed = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if completed:
            return Expected(text[: end - max(completed)], True)
    return Expected(text, False)


def certain_text(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Reference: the text that holds whatever tokens follow."""
    data = b"".join(tokenizer.token_bytes(token) for token in tokens)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    return text.removeprefix(" ") if tokenizer.strips_space else text


@pytest.mark.parametrize("tokenizer", VOCABULARIES)
@given(data=st.data())
def test_the_pieces_are_the_whole_text_up_to_the_stop_string(tokenizer, data):
    tokens = data.draw(tokens_of(tokenizer))
    text = tokenizer.decode(tokens)
    stops = data.draw(stop_strings(text))
    detokenizer = Detokenizer(tokenizer, stops)
    pieces = [detokenizer.feed(chunk) for chunk in data.draw(chunks(tokens))]
    sent = "".join(pieces) + detokenizer.finish()
    assert Expected(sent, detokenizer.stopped) == cut_at_stop(text, stops)


@pytest.mark.parametrize("tokenizer", VOCABULARIES)
@given(data=st.data())
def test_exactly_what_could_still_become_a_stop_string_is_withheld(tokenizer, data):
    tokens = data.draw(tokens_of(tokenizer))
    stops = data.draw(stop_strings(tokenizer.decode(tokens)))
    beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
    detokenizer = Detokenizer(tokenizer, stops)
    sent = ""
    for count in range(1, len(tokens) + 1):
        sent += detokenizer.feed(tokens[count - 1 : count])
        expected = cut_at_stop(certain_text(tokenizer, tokens[:count]), stops)
        assert detokenizer.stopped == expected.stopped
        if expected.stopped:
            assert sent == expected.text
            assert detokenizer.num_tokens == count
            break
        ends = (expected.text[start:] for start in range(len(expected.text)))
        withheld = next((end for end in ends if end in beginnings), "")
        assert sent + withheld == expected.text
        assert detokenizer.num_tokens == count


@pytest.mark.parametrize(("tokenizer", "library"), LIBRARY)
@given(data=st.data())
def test_decoding_agrees_with_the_library(tokenizer, library, data):
    """Except for invalid bytes in byte pieces, where the library replaces whole characters too."""
    tokens = data.draw(tokens_of(tokenizer))
    skip = data.draw(st.booleans())
    ours = tokenizer.decode(tokens, skip_special=skip)
    theirs = library.decode(tokens, skip_special_tokens=skip)
    if "\ufffd" in theirs and tokenizer.strips_space:
        assert "\ufffd" in ours
        assert len(ours) <= len(theirs)
    else:
        assert ours == theirs
