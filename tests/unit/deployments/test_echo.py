import pytest

from chairlift.deployments.echo import make_echo
from support.scored import scored_request
from support.vocabularies import byte_level_metadata, sentence_piece_metadata, tokenizer_of

BYTES = tokenizer_of(byte_level_metadata("a b"))
PIECES = tokenizer_of(sentence_piece_metadata("▁", "a", "b", "▁a", add_bos_token=True))
BEGIN, AB = 0, 258


def echo(tokenizer, prompt, tokens=None, *, logprobs=0):
    tokens = tokens or (prompt if isinstance(prompt, list) else None)
    if tokens is None:
        tokens = tokenizer.encode(prompt, add_special=True)
    made = make_echo(tokenizer, prompt, scored_request(tokens, prompt_logprobs=logprobs))
    return made.text, made.offsets


def test_offsets_point_to_where_each_token_begins_in_the_text():
    assert echo(BYTES, "abéab") == ("abéab", (0, 2, 2, 3))
    assert echo(BYTES, "abéab", logprobs=None) == ("abéab", ())


def test_ids_are_decoded():
    tokens = BYTES.encode("xab", add_special=False)
    assert echo(BYTES, [BEGIN, *tokens]) == ("xab", (0, 0, 1))
    assert echo(BYTES, [BEGIN]) == ("", (0,))


def test_a_special_token_is_text_only_where_the_client_wrote_it():
    text = "ab<|end|>ab"
    tokens = BYTES.encode(text, add_special=False)
    assert len(tokens) == 3
    assert echo(BYTES, text) == (text, (0, 2, 9))
    assert echo(BYTES, text, [BEGIN, *tokens]) == (text, (0, 0, 2, 9))


def test_the_space_that_encoding_puts_before_the_text_is_no_part_of_it():
    tokens = PIECES.encode("a b", add_special=True)
    assert [PIECES.token_bytes(token) for token in tokens] == [b"", b" a", b" ", b"b"]
    assert echo(PIECES, "a b") == ("a b", (0, 0, 1, 2))


@pytest.mark.parametrize("prompt", ["ab", [AB, 2 + 0xC3]])
def test_no_offset_lies_beyond_the_text(prompt):
    """A tokenizer may change what it is given, so tokens can be longer than the text."""
    text, offsets = echo(BYTES, prompt, [AB, AB, AB])
    assert max(offsets) <= len(text)
