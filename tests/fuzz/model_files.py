"""A model's files: GGUF, safetensors, configurations, tokenizers, chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import gguf
from hypothesis import strategies as st

from chairlift.cluster.errors import InvalidRequest, ModelError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.model_files import read_spec, weight_shapes
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.tokenizer import Tokenizer
from fuzz.damage import any_json, damaged, nested, noise
from fuzz.target import Feed, Target, need
from support.tiny_llama import CONFIG, random_weights, write_folder, write_gguf
from support.vocabularies import byte_level_metadata, sentence_piece_metadata, tokenizer_of
from support.vocabularies import write_gguf as write_vocabulary

__all__ = [
    "CONFIGURATION",
    "GGUF",
    "GGUF_TOKENIZER",
    "SAFETENSORS",
    "SETTINGS",
    "TEMPLATE",
    "TOKENIZER",
]

FILE = "m.gguf"
TEXT = "Hello, wörld 123 \U0001f600 <s>"
BRACKETS = ((b"[", b"]"), (b'{"a":', b"}"))
JSON_WORDS = [b"1e999", b"NaN", b"null", b"-1", b"4294967295", b"\xff", b'"\\ud800"', b"[]", b"{}"]


@contextmanager
def _at(scratch: Path, name: str, look: Callable[[], object]) -> Iterator[Feed]:
    """Write the input into a file, and look; refusals are one line that names the model."""

    def feed(data: bytes) -> None:
        (scratch / name).write_bytes(data)
        try:
            look()
        except ModelError as error:
            need("\n" not in str(error), f"more than a line: {error}")
            raise

    yield feed


def _gguf_inputs(scratch: Path) -> st.SearchStrategy[bytes]:
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write_gguf(scratch / FILE, random_weights(), type_of=lambda name: kind)
    whole = path.read_bytes()
    # Damage before the tensors' data is the interesting one.
    start = whole.index(b"output.weight") + 64
    return st.one_of(damaged([whole], within=start), damaged([whole]), noise)


def _gguf(scratch: Path) -> AbstractContextManager[Feed]:
    from chairlift.workers.weights import load_weights

    def look() -> None:
        dict(GgufFile.open(scratch / FILE).metadata)
        load_weights(read_spec(scratch / FILE), lambda share: None)

    return _at(scratch, FILE, look)


def _safetensors_inputs(scratch: Path) -> st.SearchStrategy[bytes]:
    whole = (write_folder(scratch, random_weights()) / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    return st.one_of(
        damaged([whole], JSON_WORDS, within=start),
        damaged([whole]),
        nested(*BRACKETS).map(lambda data: len(data).to_bytes(8, "little") + data),
        noise,
    )


def _safetensors(scratch: Path) -> AbstractContextManager[Feed]:
    from chairlift.workers.weights import load_weights

    return _at(
        scratch,
        "model.safetensors",
        lambda: load_weights(read_spec(scratch), lambda share: None),
    )


def _configurations(scratch: Path) -> st.SearchStrategy[bytes]:
    good = [dict(CONFIG), dict(CONFIG) | MIXTURE, dict(CONFIG) | SCALED]
    keys = st.sampled_from(sorted({key for each in good for key in each}))
    values = any_json(keys)
    changed = st.builds(
        lambda base, other: json.dumps({**base, **other}).encode(),
        st.sampled_from(good),
        st.dictionaries(keys, values, min_size=1, max_size=3),
    )
    seeds = [json.dumps(each).encode() for each in good]
    return st.one_of(changed, damaged(seeds, JSON_WORDS), nested(*BRACKETS), noise)


MIXTURE = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
SCALED = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
}


def _configuration(scratch: Path) -> AbstractContextManager[Feed]:
    return _at(scratch, "config.json", lambda: weight_shapes(read_spec(scratch)))


def _tokenizers(scratch: Path) -> st.SearchStrategy[bytes]:
    metadata = (byte_level_metadata("a b", "ab c"), sentence_piece_metadata("a", "b", "ab"))
    texts = [tokenizer_of(each)._backend.to_str() for each in metadata]
    trees = [json.loads(text) for text in texts]
    keys = st.sampled_from(sorted({key for tree in trees for key in tree} | NESTED_KEYS))
    changed = st.builds(
        lambda tree, other: json.dumps({**tree, **other}).encode(),
        st.sampled_from(trees),
        st.dictionaries(keys, any_json(keys), min_size=1, max_size=2),
    )
    seeds = [text.encode() for text in texts]
    return st.one_of(
        damaged(seeds, JSON_WORDS), damaged([ADDED]), changed, nested(*BRACKETS), noise
    )


NESTED_KEYS = {"type", "vocab", "merges", "content", "id", "special", "pattern", "decoders"}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
ADDED = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 2**31,
                "content": "<s>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    }
).encode()


def _tokenizer(scratch: Path) -> AbstractContextManager[Feed]:
    return _at(scratch, "tokenizer.json", lambda: _use(Tokenizer.load(scratch)))


def _use(tokenizer: Tokenizer) -> None:
    """All that a router does with one at its start, and a text there and back."""
    tokenizer.decode(tokenizer.encode(TEXT, add_special=True))
    vocabulary = tokenizer.vocabulary()
    need(len(vocabulary.tokens) == tokenizer.vocab_size, "the vocabulary has another size")


def _vocabularies(scratch: Path) -> st.SearchStrategy[bytes]:
    named = (
        byte_level_metadata("a b", "ab c", splitter="llama3", add_bos_token=True),
        sentence_piece_metadata("a", "b", "ab", add_eos_token=True),
    )
    seeds = [write_vocabulary(scratch / FILE, metadata).read_bytes() for metadata in named]
    built = st.builds(
        _with_tokens,
        st.sampled_from(named),
        st.lists(st.one_of(st.text(max_size=4), st.sampled_from(ODD_TOKENS)), max_size=4),
    ).map(lambda metadata: write_vocabulary(scratch / FILE, metadata).read_bytes())
    return st.one_of(damaged(seeds), built, noise)


ODD_TOKENS = ["", "$A", "$", "a:1", "a:b", ":", "▁", "\0", "a" * 5000, "<0x41>", " ", "Ġ"]


def _with_tokens(metadata: Mapping[str, object], tokens: list[str]) -> dict[str, object]:
    """The first of its tokens replaced, so that begin and end are odd as well."""
    key = "tokenizer.ggml.tokens"
    old = metadata[key]
    assert isinstance(old, list)
    return {**metadata, key: [*tokens, *old[len(tokens) :]]}


def _gguf_tokenizer(scratch: Path) -> AbstractContextManager[Feed]:
    return _at(scratch, FILE, lambda: _use(Tokenizer.load(scratch / FILE)))


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
CALLS = (
    "{%- macro say(m, deep=1) -%}{{ m['content'] | trim | upper }}{%- endmacro -%}"
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'x' recursive %}"
    "{% set ns.n = ns.n + loop.index %}{{ say(m) ~ ns.n }}{{ m | tojson(indent=2) }}"
    "{% if loop.last and add_generation_prompt %}{{ bos_token * 3 }}{% endif %}{% endfor %}"
    "{{ raise_exception('no') if not messages else strftime_now('%Y') }}"
)
TEMPLATE_WORDS = [
    word.encode()
    for word in (
        "{{", "}}", "{%", "%}", "{#", "-%}", "for x in range(9999) %}", "{% endfor %}", "| list",
        "* 99999", "** 99", "~ x", "|join('a')", ".__class__", "|format(1)", "'%9s' %", "[::-1]",
        "|map('upper')", "|batch(2)", "loop(messages)", "|replace('','a')", "{% if", "9" * 5000,
        "not ", "(((", "- - -", "|int", "|float", "1e999", "is sameas", "\\x", "|sort", "cycler(",
        "self.", "joiner()", "{% include 'a' %}", "{% extends x %}", "{% block a %}", "%s",
    )
]  # fmt: skip
BLOCKS = (
    (b"{% for a in messages %}", b"{% endfor %}"),
    (b"{% if 1 %}", b"{% endif %}"),
    (b"{{ (", b") }}"),
    (b"(", b")"),
    (b"{{[", b"]}}"),
    (b"{% macro a() %}", b"{% endmacro %}"),
)
CONVERSATION = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def _templates(scratch: Path) -> st.SearchStrategy[bytes]:
    seeds = [PLAIN.encode(), CALLS.encode()]
    chains = st.builds(
        lambda piece, times: b"{{ a" + piece * times + b" }}",
        st.sampled_from([b"+1", b"|upper", b".a", b"[0]", b"~a", b" or a", b" if a else a", b"()"]),
        st.sampled_from([1, 30, 90, 300, 1000, 5000]),
    )
    wrapped = nested((b"(", b")"), (b"[", b"]"), (b"-", b""), (b"not ", b"")).map(
        lambda inner: b"{{ " + inner + b" }}"
    )
    return st.one_of(damaged(seeds, TEMPLATE_WORDS), nested(*BLOCKS), chains, wrapped, noise)


def _template(scratch: Path) -> AbstractContextManager[Feed]:
    """A folder's template, which may be no text, compiled and run."""
    vocabulary = tokenizer_of(byte_level_metadata("a b"))

    def look() -> None:
        template = ChatTemplate.load(scratch, vocabulary)
        if template is not None:
            template.render(CONVERSATION)

    return _at(scratch, "chat_template.jinja", look)


def _settings(scratch: Path) -> st.SearchStrategy[bytes]:
    (scratch / "tokenizer.json").write_bytes(ADDED)
    values = any_json(st.sampled_from(["name", "template", "content", "default"]))
    good: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "chat_template": [{"name": "default", "template": PLAIN}],
    }
    changed = st.builds(
        lambda other: json.dumps(good | other).encode(),
        st.dictionaries(st.sampled_from(sorted(good)), values, min_size=1),
    )
    seeds = [json.dumps(good).encode()]
    return st.one_of(changed, damaged(seeds, JSON_WORDS), nested(*BRACKETS), noise)


def _setting(scratch: Path) -> AbstractContextManager[Feed]:
    """What a folder says of its tokenizer, special tokens and template among it."""
    return _at(
        scratch,
        "tokenizer_config.json",
        lambda: ChatTemplate.load(scratch, Tokenizer.load(scratch)),
    )


GGUF = Target("GGUF files", _gguf_inputs, _gguf, (ModelError,))
SAFETENSORS = Target("safetensors files", _safetensors_inputs, _safetensors, (ModelError,))
CONFIGURATION = Target("model configurations", _configurations, _configuration, (ModelError,))
SETTINGS = Target("tokenizer_config.json", _settings, _setting, (ModelError,))
TOKENIZER = Target("tokenizer.json", _tokenizers, _tokenizer, (ModelError,))
GGUF_TOKENIZER = Target("GGUF vocabularies", _vocabularies, _gguf_tokenizer, (ModelError,))
TEMPLATE = Target("chat templates", _templates, _template, (ModelError, InvalidRequest))
