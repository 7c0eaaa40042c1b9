"""Stop strings over text in pieces."""

from __future__ import annotations

import pytest

from chairlift.router.stop_strings import StopScanner


def test_without_stop_strings_everything_passes():
    scanner = StopScanner(())
    assert scanner.feed("abc") == "abc"
    assert scanner.finish() == ""
    assert not scanner.stopped


def test_text_is_cut_before_a_stop_string_across_pieces():
    scanner = StopScanner(("STOP",))
    assert [scanner.feed(piece) for piece in ["ab S", "T", "O", "P and", " more"]] == [
        "ab ",
        "",
        "",
        "",
        "",
    ]
    assert scanner.stopped
    assert scanner.finish() == ""


def test_withheld_text_passes_as_soon_as_it_cannot_become_a_stop_string():
    scanner = StopScanner(("\n\nUser:",))
    assert scanner.feed("one\n") == "one"
    assert scanner.feed("two\n\nUs") == "\ntwo"
    assert scanner.feed("a") == "\n\nUsa"
    assert scanner.finish() == ""


def test_only_the_longest_end_that_begins_a_stop_string_is_withheld():
    """A fixed-length hold would keep back more; forgetting the failure links would lose "ab"."""
    scanner = StopScanner(("abac",))
    assert scanner.feed("aba") == ""
    assert scanner.feed("b") == "ab"
    assert scanner.feed("x") == "abx"


def test_finish_returns_an_unfinished_stop_string():
    scanner = StopScanner(("STOP",))
    assert scanner.feed("STO") == ""
    assert scanner.finish() == "STO"
    assert not scanner.stopped


def test_the_stop_string_that_completes_first_wins_over_one_that_starts_first():
    scanner = StopScanner(("bcdef", "cd"))
    assert scanner.feed("abcdef") == "ab"


def test_of_two_that_complete_together_the_longer_one_is_cut():
    for stops in [("cd", "bcd"), ("bcd", "cd")]:
        assert StopScanner(stops).feed("abcd") == "a"


def test_a_stop_string_that_overlaps_itself_is_found():
    scanner = StopScanner(("aaab",))
    assert scanner.feed("aaaa") == "a"
    assert scanner.feed("b") == ""
    assert scanner.stopped


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopScanner(("a", ""))
