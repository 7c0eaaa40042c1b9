import json

import pytest

from chairlift.cluster.grammar import json_grammar
from chairlift.workers.grammars import MAX_COMPILED, Grammars
from support.grammars import END, byte_grammars, texts_after

PAIR = json_grammar({"enum": ["ab", "ac"]})


@pytest.fixture(scope="module")
def grammars():
    return byte_grammars(vocab_size=300)


def test_what_may_come_follows_from_what_has_come(grammars):
    follower = grammars.follow(PAIR)
    assert texts_after(follower) == {ord('"')}
    assert texts_after(follower, b'"a') == {ord("b"), ord("c")}
    assert texts_after(follower, b'c"') == {END}


def test_tokens_may_come_at_once_or_one_by_one(grammars):
    whole, pieces = grammars.follow(PAIR), grammars.follow(PAIR)
    whole.take(b'"ac')
    for byte in b'"ac':
        pieces.take([byte])
    assert whole.mask() == pieces.mask()
    assert whole.num_tokens == pieces.num_tokens == 3


def test_an_end_may_come_where_the_grammar_can_end_and_nowhere_else(grammars):
    follower = grammars.follow(json_grammar({"type": "integer", "minimum": 0, "maximum": 99}))
    assert END not in texts_after(follower)
    assert texts_after(follower, b"4") == {END, *b"0123456789"}
    assert texts_after(follower, b"2") == {END}


def test_marks_in_a_constant_are_spelt_as_text(grammars):
    follower = grammars.follow(json_grammar({"const": "<bos>"}))
    for byte in b'"<bos>"':
        assert texts_after(follower) == {byte}
        follower.take([byte])


@pytest.mark.parametrize("foreign", [ord("x"), END, 299])
def test_after_a_foreign_token_nothing_may_come(grammars, foreign):
    follower = grammars.follow(PAIR)
    follower.take([ord('"'), foreign])
    assert follower.mask() == b""
    follower.take([ord("a")])
    assert follower.mask() == b""


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: nothing", "nothing"),
        ("{", "EOF"),
        (json_grammar({"$ref": "#"}), "no text"),
        (json_grammar({"type": "integer", "multipleOf": 10**9 + 7}), "fuel"),
    ],
)
def test_what_cannot_be_compiled_is_said_each_time(grammars, grammar, words):
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            grammars.compiled(grammar).result()
        with pytest.raises(ValueError, match=words):
            grammars.follow(grammar)


def test_a_model_without_an_end_can_follow_nothing():
    with pytest.raises(ValueError, match="end token"):
        Grammars(lambda: pytest.fail("is not read"), 300, ()).follow(PAIR)


def test_a_vocabulary_that_cannot_be_read_is_a_reason_too():
    def read():
        raise OSError("the file has gone")

    with pytest.raises(ValueError, match="the file has gone"):
        Grammars(read, 300, (END,)).compiled(PAIR).result()


def test_the_vocabulary_is_read_once_and_a_grammar_compiled_once():
    grammars = byte_grammars()
    assert grammars.compiled(PAIR) is grammars.compiled(PAIR)
    first = grammars.compiled(PAIR).result()
    for number in range(MAX_COMPILED):
        grammars.compiled(json_grammar({"const": number})).result()
    assert grammars.compiled(PAIR).result() is not first  # the oldest has made room


def test_followers_do_not_disturb_each_other(grammars):
    one, other = grammars.follow(PAIR), grammars.follow(PAIR)
    one.take(b'"ab"')
    assert texts_after(other) == {ord('"')}
    assert json.loads(PAIR)
