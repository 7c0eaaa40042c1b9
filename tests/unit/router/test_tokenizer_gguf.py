"""Vocabularies of GGUF files."""

from __future__ import annotations

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.router.tokenizer_gguf import GgufVocabulary, build_tokenizer
from support.vocabularies import byte_level_metadata, sentence_piece_metadata, tokenizer_of

NUMBERS = ("1 2", "12 3", "123 4", "1234 5")


def entries(metadata, text, *, add_special=False):
    tokens = metadata["tokenizer.ggml.tokens"]
    return [tokens[id_] for id_ in tokenizer_of(metadata).encode(text, add_special=add_special)]


@pytest.mark.parametrize(
    ("splitter", "expected"),
    [
        ("gpt-2", ["12345"]),
        ("default", ["12345"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", ["123", "4", "5"]),
        ("llama3", ["123", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
    ],
)
def test_numbers_are_split_as_the_kind_wants(splitter, expected):
    assert entries(byte_level_metadata(*NUMBERS, splitter=splitter), "12345") == expected


@pytest.mark.parametrize(
    ("splitter", "expected"),
    [
        ("gpt-2", ["Ġa", "'", "S", "(", "a", "ĊĊ", "Ġ"]),
        ("smollm", ["Ġa", "'", "S", "(", "a", "ĊĊ", "Ġ"]),
        ("llama-bpe", ["Ġa", "'S", "(a", "ĊĊ", "Ġ"]),
        ("qwen2", ["Ġa", "'S", "(a", "ĊĊ", "Ġ"]),
    ],
)
def test_words_are_split_as_the_kind_wants(splitter, expected):
    """Of these merges, some would cross the border of two words; those are not taken."""
    metadata = byte_level_metadata("Ġ a", "' S", "( a", "Ċ Ċ", "S (", "a Ċ", splitter=splitter)
    assert entries(metadata, " a'S(a\n\n ") == expected


def test_a_missing_kind_is_the_default():
    metadata = byte_level_metadata(*NUMBERS)
    del metadata["tokenizer.ggml.pre"]
    assert entries(metadata, "123") == ["123"]


def test_only_llama3_takes_a_token_whole_that_its_merges_do_not_reach():
    merges = ("b c", "a b", "ab c")
    assert entries(byte_level_metadata(*merges, splitter="llama3"), "abc") == ["abc"]
    assert entries(byte_level_metadata(*merges), "abc") == ["a", "bc"]


def test_qwen2_composes_characters_first():
    assert entries(byte_level_metadata("Ã ©", splitter="qwen2"), "e\u0301") == ["Ã©"]
    assert entries(byte_level_metadata("Ã ©"), "e\u0301") == ["e", "Ì", "ģ"]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_level_metadata("a b"), ["ab"]),
        (byte_level_metadata("a b", add_bos_token=True), ["<|begin|>", "ab"]),
        (byte_level_metadata("a b", add_eos_token=True), ["ab", "<|end|>"]),
        (byte_level_metadata("a b", splitter="llama-bpe"), ["<|begin|>", "ab"]),
        (byte_level_metadata("a b", splitter="llama-bpe", add_bos_token=False), ["ab"]),
        (sentence_piece_metadata("▁"), ["<s>", "▁", "<0x61>", "<0x62>"]),
        (sentence_piece_metadata("▁", add_bos_token=False), ["▁", "<0x61>", "<0x62>"]),
    ],
)
def test_begin_and_end_tokens_are_added_where_the_file_wants_them(metadata, expected):
    assert entries(metadata, "ab", add_special=True) == expected
    around = {"<|begin|>", "<|end|>", "<s>"}
    assert entries(metadata, "ab") == [entry for entry in expected if entry not in around]


def test_control_tokens_are_special_and_user_defined_ones_are_text():
    tokenizer = tokenizer_of(byte_level_metadata("a b", own=["<think>"]))
    ids = tokenizer.encode("<|end|><think>ab", add_special=False)
    assert [tokenizer.is_special(id_) for id_ in ids] == [True, False, False]
    assert tokenizer.decode(ids) == "<think>ab"


PIECES = ("a", "b", "c", "▁", "ab", "▁a", "bc", "▁ab", "abc", "▁▁", "漢")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab", ["▁ab"]),
        (" ab", ["▁", "▁ab"]),
        ("abc", ["▁ab", "c"]),
        ("a bc", ["▁a", "▁", "bc"]),
        ("漢é\n", ["▁", "漢", "<0xC3>", "<0xA9>", "<0x0A>"]),
        ("a</s>b", ["▁a", "</s>", "▁", "b"]),
        ("", []),
    ],
)
def test_sentence_piece_merges_the_best_scores_and_spells_the_rest_in_bytes(text, expected):
    metadata = sentence_piece_metadata(*PIECES)
    assert entries(metadata, text) == expected


def test_sentence_piece_text_comes_back_without_the_added_space():
    tokenizer = tokenizer_of(sentence_piece_metadata(*PIECES))
    assert tokenizer.decode(tokenizer.encode("  a 漢é", add_special=False)) == "  a 漢é"


def test_a_sentence_piece_file_can_do_without_the_added_space():
    metadata = sentence_piece_metadata(*PIECES, add_space_prefix=False)
    tokenizer = tokenizer_of(metadata)
    assert entries(metadata, "ab") == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab", add_special=False)) == " ab"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported.*smollm"),
        ({"model": "t5"}, "tokenizer model 't5' is not supported; supported are gpt2, llama"),
        ({"model": None}, "tokenizer model None"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokens": []}, r"no tokenizer\.ggml\.tokens"),
        ({"tokens": [1, 2]}, r"tokens is no list of str"),
        ({"tokens": ["a", "a"]}, "holds a token twice"),
        ({"token_type": None}, r"no tokenizer\.ggml\.token_type"),
        ({"token_type": [1]}, r"token_type has 1 entries for 259 tokens"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["a b", "ab"]}, "merge 'ab' is not two tokens"),
        ({"merges": ["a b c"]}, "merge 'a b c' is not two tokens"),
        ({"bos_token_id": 259}, "bos_token_id 259 is beyond"),
        ({"eos_token_id": -1}, "eos_token_id -1 is beyond"),
    ],
)
def test_wrong_metadata_is_a_model_error(change, complaint):
    metadata = byte_level_metadata("a b")
    for name, value in change.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    metadata = {name: value for name, value in metadata.items() if value is not None}
    with pytest.raises(ModelError, match=complaint):
        GgufVocabulary.read(metadata)


def test_merges_of_other_tokens_are_a_model_error():
    metadata = byte_level_metadata("a b")
    metadata["tokenizer.ggml.merges"] = ["a b", "b c"]
    with pytest.raises(ModelError, match="merges do not fit its vocabulary"):
        build_tokenizer(GgufVocabulary.read(metadata))


def test_sentence_piece_needs_scores():
    metadata = sentence_piece_metadata(*PIECES)
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelError, match="scores"):
        GgufVocabulary.read(metadata)


@pytest.mark.parametrize("begin", ["a:b", "$A", "$0", "<|x:1|>", "begin", "end"])
def test_begin_and_end_may_be_spelt_like_a_place_in_a_template(begin):
    metadata = byte_level_metadata("a b", add_bos_token=True, add_eos_token=True)
    metadata["tokenizer.ggml.tokens"][0] = begin
    assert entries(metadata, "b", add_special=True) == [begin, "b", "<|end|>"]
