"""Tokenizers from both kinds of files."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers

from chairlift.cluster.errors import InvalidRequest, ModelError
from chairlift.router.tokenizer import Tokenizer
from chairlift.router.tokenizer_gguf import GgufVocabulary, build_tokenizer
from support.vocabularies import (
    byte_level_metadata,
    embedded_model,
    sentence_piece_metadata,
    tokenizer_of,
    write_gguf,
)

TEXTS = [
    "The quick brown fox didn't jump; it's 'lazy'.",
    "def f(x: int) -> int:\n    if x > 0:\n\t\treturn f(x - 1)  # deep\n",
    "In 2024, 3.14159 × 10 = 31.4159; ½ and ² and ١٢٣",
    "Café naïve Ångström e\u0301",
    "漢字かな交じり文、한국어 텍스트。",
    "🙂👍🏽👨\u200d👩\u200d👧🇫🇷",
    "  leading, trailing   and\t\truns \n\n\n \r\n ",
    "<|im_start|>user\nHi<|im_end|>\n<repo_name>x",
    "\x00\x01\x7f\u00a0\u2028\ufffd\U0010ffff",
    "",
]


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return Tokenizer.load(embedded_model())


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_embedded_model_s_tokenizer(embedded, text):
    ids = embedded.encode(text, add_special=False)
    assert embedded.decode(ids, skip_special=False) == text
    assert all(0 <= id_ < embedded.vocab_size for id_ in ids)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("Hello, world!", ["Hello", ",", " world", "!"]),
        ("x = 1234", ["x", " =", " ", "1", "2", "3", "4"]),
        ("y2k²", ["y", "2", "k", "²"]),
        ("a   b", ["a", "  ", " b"]),
        ("\n\n\tx", ["\n\n", "\t", "x"]),
        ("it's", ["it", "'s"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "\n"]),
        ("a<|im_end|>b", ["a", "<|im_end|>", "b"]),
    ],
)
def test_the_embedded_model_s_tokens(embedded, text, entries):
    ids = embedded.encode(text, add_special=True)
    assert [embedded.decode([id_], skip_special=False) for id_ in ids] == entries


def test_the_embedded_model_s_special_tokens(embedded):
    assert embedded.vocab_size == 49152
    assert (embedded.bos_token, embedded.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert embedded.encode("<|im_start|><|im_end|>", add_special=False) == [1, 2]
    assert [embedded.is_special(id_) for id_ in (0, 1, 2, 16, 17)] == [True] * 4 + [False]
    assert embedded.decode([1, 19556, 2]) == "Hello"


@pytest.mark.slow
def test_the_embedded_model_s_tokens_are_those_of_transformers(embedded):
    """It knows no rule for this model's digits, so digits are left out."""
    transformers = pytest.importorskip("transformers")
    path = embedded_model()
    other = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    for text in TEXTS:
        text = "".join(character for character in text if not character.isnumeric())
        assert embedded.encode(text, add_special=True) == other.encode(text)


def test_many_threads_may_encode_at_once(embedded):
    texts = [f"{text} {number}" for text in TEXTS for number in range(50)]
    alone = [embedded.encode(text, add_special=False) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: embedded.encode(text, add_special=False), texts))
    assert together == alone


def test_half_a_surrogate_pair_is_an_invalid_request(embedded):
    with pytest.raises(InvalidRequest, match="surrogate"):
        embedded.encode("a\ud83d", add_special=False)


def test_an_added_token_is_its_own_text_whatever_its_letters():
    """In a byte-level vocabulary "é" is the letter of a byte, which alone is no UTF-8."""
    tokenizer = tokenizer_of(byte_level_metadata("a b", own=["café", "→"]))
    ids = tokenizer.encode("abcafé→", add_special=False)
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "abcafé→"


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = tokenizer_of(byte_level_metadata("a b"))
    assert tokenizer.vocab_size == 2 + 256 + 1
    assert tokenizer.decode([258, 259, 1_000_000]) == "ab"
    assert not tokenizer.is_special(1_000_000)


def test_valid_characters_survive_next_to_invalid_byte_pieces():
    tokenizer = tokenizer_of(sentence_piece_metadata("▁", "a"))
    byte_0 = 3
    assert tokenizer.decode([byte_0 + byte for byte in b"\xc3\xa9\xff\xe6\xbc"]) == "é\ufffd\ufffd"


def test_a_gguf_file_is_read(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", byte_level_metadata("a b", add_bos_token=True))
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("ab", add_special=True) == [0, 258]
    assert tokenizer.encode("ab", add_special=False) == [258]


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder with the tiny byte-level vocabulary."""
    vocabulary = GgufVocabulary.read(byte_level_metadata("a b", add_bos_token=True))
    build_tokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_hugging_face_folder_is_read(folder):
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("ab<|end|>", add_special=True) == [0, 258, 1]
    assert tokenizer.encode("ab", add_special=False) == [258]
    assert tokenizer.decode([0, 258, 1]) == "ab"
    assert tokenizer.decode([0, 258, 1], skip_special=False) == "<|begin|>ab<|end|>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, None)


@pytest.mark.parametrize(
    ("config", "special", "expected"),
    [
        ({"bos_token": "a", "eos_token": {"content": "b"}}, None, ("a", "b")),
        ({"bos_token": None, "eos_token": "b"}, None, (None, "b")),
        ({}, {"bos_token": "x", "eos_token": {"content": "y"}}, ("x", "y")),
        ({"bos_token": "a"}, {"bos_token": "x", "eos_token": "y"}, ("a", "y")),
        (None, {"eos_token": "y"}, (None, "y")),
    ],
)
def test_names_of_special_tokens_come_from_either_file(folder, config, special, expected):
    for file, content in [("tokenizer_config.json", config), ("special_tokens_map.json", special)]:
        if content is not None:
            (folder / file).write_text(json.dumps(content))
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == expected


def test_truncation_and_padding_in_the_file_are_ignored(folder):
    """Files saved after training often carry both; a prompt would silently lose its end."""
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=5)
    backend.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.load(folder).encode("xyz", add_special=False)) == 3
    assert len(Tokenizer.load(folder).encode("x", add_special=False)) == 1


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("tokenizer.json", None, r"tokenizer\.json is missing"),
        ("tokenizer.json", "{", r"tokenizer\.json cannot be read"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is not JSON"),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "is not JSON"),
        ("tokenizer_config.json", "\xff", "is not JSON"),
    ],
)
def test_a_damaged_folder_is_a_model_error(folder, file, content, complaint):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=complaint):
        Tokenizer.load(folder)


def test_a_tokenizer_without_a_decoder_is_refused(folder):
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = None
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="no decoder"):
        Tokenizer.load(folder)


def test_a_vocabulary_may_have_no_added_tokens(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.encode("ab", add_special=True)) == (2, [0, 1])
