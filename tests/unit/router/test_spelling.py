from chairlift.router.spelling import Speller

TOKENS = (b"a", b"b", b"ab", b" ", b" a", b"<s>", b"<", b"s", b">")
SPECIAL = frozenset({5})


def speller(encode):
    return Speller(encode, TOKENS, SPECIAL)


def test_a_text_is_spelt_as_the_model_was_trained_to_see_it():
    assert speller(lambda text: [0, 1]).spell("ab") == [0, 1]


def test_a_space_that_is_put_before_a_text_is_not_taken():
    assert speller(lambda text: [4, 1]).spell("ab") == [2]


def test_marks_are_spelt_as_text():
    assert speller(lambda text: [5]).spell("<s>") == [6, 7, 8]


def test_what_the_vocabulary_cannot_spell_is_left_out():
    assert speller(lambda text: []).spell("abz") == [2]
