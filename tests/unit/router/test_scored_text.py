"""Which tokens are settled when, over a vocabulary of bytes."""

import pytest

from chairlift.router.detokenizer import Detokenizer
from chairlift.router.scored_text import ScoredText
from support.fake_tokenizer import BOS, FakeTokenizer
from support.scored import logprobs_of


class Written:
    """A text, and the tokens as (what they are, where they stand)."""

    def __init__(self, *stop: str, **options) -> None:
        self.scored = ScoredText(Detokenizer(FakeTokenizer(), stop, **options))

    def feed(self, data: bytes | list[int]) -> tuple[str, list[tuple[int, int]]]:
        self.scored.score(logprobs_of(token, 0) for token in data)
        text = self.scored.feed(list(data))
        return text, self.take(last=self.scored.stopped)

    def finish(self, end: list[int] | None = None) -> tuple[str, list[tuple[int, int]]]:
        text = self.scored.finish()
        self.scored.score(logprobs_of(token, 0) for token in end or [])
        self.scored.end(end or [])
        return text, self.take(last=True)

    def take(self, *, last: bool) -> list[tuple[int, int]]:
        tokens = self.scored.take(last=last)
        assert all(each.logprobs == logprobs_of(each.token, 0) for each in tokens)
        return [(each.token, each.offset) for each in tokens]


def at(data: bytes, *offsets: int) -> list[tuple[int, int]]:
    return list(zip(data, offsets, strict=True))


def test_a_token_is_settled_with_its_text():
    written = Written()
    assert written.feed(b"a") == ("a", at(b"a", 0))
    assert written.feed(b"bc") == ("bc", at(b"bc", 1, 2))
    assert written.finish() == ("", [])


def test_the_tokens_of_a_character_are_settled_together_and_stand_where_it_stands():
    written = Written()
    assert written.feed("x🙂".encode()[:3]) == ("x", at(b"x", 0))
    assert written.feed("🙂".encode()[2:] + b"y") == ("🙂y", at("🙂y".encode(), 1, 1, 1, 1, 2))


def test_what_may_become_a_stop_string_is_not_settled_until_it_cannot():
    written = Written("end")
    assert written.feed(b"aen") == ("a", at(b"a", 0))
    assert written.feed(b"e") == ("en", at(b"en", 1, 2))
    assert written.finish() == ("e", at(b"e", 3))


def test_tokens_behind_the_cut_bring_nothing():
    written = Written("end")
    assert written.feed(b"xendy") == ("x", at(b"x", 0))
    assert written.scored.num_tokens == 4
    assert written.finish() == ("", [])


class Words(FakeTokenizer):
    """Has the words ``xe`` (1) and ``nd`` (2), besides bytes."""

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes:
        return {1: b"xe", 2: b"nd"}.get(id_) or super().token_bytes(id_)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2], [(1, 0)]),  # a part of it stands in the text
        ([BOS, 1, 2], [(BOS, 0), (1, 0)]),
        ([1, BOS, 2], [(1, 0)]),  # within the stop string
        ([97, BOS, 101, 2], [(97, 0), (BOS, 1)]),  # right before it
    ],
)
def test_the_cut_goes_through_tokens_and_past_those_without_text(tokens, expected):
    scored = ScoredText(Detokenizer(Words(), ("end",)))
    taken = []
    for token in tokens:
        scored.score([logprobs_of(token, 0)])
        scored.feed([token])
        taken += scored.take(last=scored.stopped)
    assert scored.stopped
    assert [(each.token, each.offset) for each in taken] == expected


def test_tokens_without_text_keep_their_place():
    written = Written("end")
    assert written.feed([BOS]) == ("", [(BOS, 0)])
    assert written.feed([101, BOS, 110]) == ("", [])
    assert written.feed([120]) == ("enx", [(101, 0), (BOS, 1), (110, 1), (120, 2)])


def test_what_ends_the_sequence_is_settled_last():
    written = Written("end")
    written.feed(b"e")
    assert written.finish([BOS]) == ("e", [(101, 0), (BOS, 1)])


def test_a_broken_character_is_settled_when_it_is_replaced():
    written = Written()
    assert written.feed(b"\xf0\x9f") == ("", [])
    assert written.finish() == ("\ufffd", [(0xF0, 0), (0x9F, 0)])


def test_a_replacement_character_that_completes_a_stop_string_cuts_the_end_off_too():
    written = Written("b\ufffd")
    written.feed(b"ab\xf0")
    assert written.finish([BOS]) == ("", [])


def test_within_the_least_tokens_no_stop_string_counts():
    written = Written("bb", min_tokens=3)
    assert written.feed(b"bbb") == ("bbb", at(b"bbb", 0, 1, 2))
    assert written.feed(b"b") == ("", [])
    assert written.feed(b"b") == ("", [])
    assert written.scored.stopped
    assert written.scored.num_tokens == 5
