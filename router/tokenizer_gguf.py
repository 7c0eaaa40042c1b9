"""The tokenizer that a GGUF file describes.

Owns the reading of the ``tokenizer.ggml.*`` metadata: vocabulary, merges, token types, and the
name of the rule that splits text into words. The file gives only that name; the rules here are
those of the ``tokenizer.json`` files of the models that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers import pre_tokenizers as splitters
from tokenizers.models import BPE

from chairlift.cluster.errors import ModelError

__all__ = ["GgufVocabulary", "build_tokenizer"]

_PREFIX = "tokenizer.ggml."

_T = TypeVar("_T")

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Token types; of the others, unused (5) and byte (6), a tokenizer need not know."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What is a word since cl100k; models differ in the length of a NUMBER."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The ``tokenizer.ggml.*`` metadata, checked.

    Attributes:
        model: ``gpt2`` (byte-level BPE) or ``llama`` (SentencePiece-style BPE).
        splitter: name of the rule that splits text into words; used by ``gpt2`` only.
        tokens, types: by id.
        merges: pairs of tokens, the first one merges first; empty for ``llama``.
        scores: by id, the highest one merges first; empty for ``gpt2``.
        bos, eos, unknown: begin, end and unknown token, where the file names them.
        add_bos, add_eos: whether encoding with special tokens puts them around the text.
        add_space: whether encoding puts a space before the text; used by ``llama`` only.
    """

    model: str
    splitter: str
    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]]
    scores: list[float]
    bos: str | None
    eos: str | None
    unknown: str | None
    add_bos: bool
    add_eos: bool
    add_space: bool

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> GgufVocabulary:
        """Take what a tokenizer needs; ModelError if that is missing, wrong or unsupported."""
        model = metadata.get(_PREFIX + "model")
        splitter = str(metadata.get(_PREFIX + "pre", "default"))
        if model not in ("gpt2", "llama"):
            raise _unsupported("tokenizer model", model, ("gpt2", "llama"))
        if model == "gpt2" and splitter not in _SPLITTERS:
            raise _unsupported("pre-tokenizer", splitter, _SPLITTERS)
        tokens = _array(metadata, "tokens", str)
        if len(set(tokens)) != len(tokens):
            raise ModelError("the GGUF file's vocabulary holds a token twice")
        begins = model == "llama" or _SPLITTERS[splitter] is _split_as_llama3
        return cls(
            model=model,
            splitter=splitter,
            tokens=tokens,
            types=_by_id(metadata, "token_type", int, len(tokens)),
            merges=_pairs(_array(metadata, "merges", str)) if model == "gpt2" else [],
            scores=_by_id(metadata, "scores", float, len(tokens)) if model == "llama" else [],
            bos=_named(metadata, "bos_token_id", tokens),
            eos=_named(metadata, "eos_token_id", tokens),
            unknown=_named(metadata, "unknown_token_id", tokens),
            add_bos=bool(metadata.get(_PREFIX + "add_bos_token", begins)),
            add_eos=bool(metadata.get(_PREFIX + "add_eos_token", False)),
            add_space=bool(metadata.get(_PREFIX + "add_space_prefix", True)),
        )


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer, its special tokens, and the begin and end tokens where the file wants them.

    Raises:
        ModelError: the merges do not fit the vocabulary.
    """
    byte_level = vocabulary.model == "gpt2"
    tokenizer = _byte_level(vocabulary) if byte_level else _sentence_piece(vocabulary)
    typed = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    special = [token for token, type_ in typed if type_ in (_UNKNOWN, _CONTROL)]
    special += [token for token in (vocabulary.bos, vocabulary.eos) if token is not None]
    # Matched in the text as it is written, before any normalizing.
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    own = [token for token, type_ in typed if type_ == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in own])
    tokenizer.post_processor = _around_text(vocabulary)
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    """Every byte is a letter of the vocabulary, so nothing is ever unknown (GPT-2)."""
    split = _SPLITTERS[vocabulary.splitter]
    # Llama 3 takes a word that is a token whole, even where no merges lead to it.
    tokenizer = Tokenizer(
        _bpe(vocabulary, vocabulary.merges, ignore_merges=split is _split_as_llama3)
    )
    split(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(vocabulary: GgufVocabulary) -> Tokenizer:
    """Text is not split into words; what the vocabulary lacks is spelt in bytes (Llama 2)."""
    tokenizer = Tokenizer(
        _bpe(
            vocabulary,
            _merges_by_score(vocabulary),
            unk_token=vocabulary.unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend("▁")] if vocabulary.add_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", left=1)] if vocabulary.add_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _bpe(vocabulary: GgufVocabulary, merges: list[tuple[str, str]], **options: object) -> BPE:
    ids = {token: id_ for id_, token in enumerate(vocabulary.tokens)}
    try:
        return BPE(ids, merges, **options)
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"the GGUF file's merges do not fit its vocabulary: {error}") from None


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the tokens with the highest score first."""
    typed = zip(vocabulary.tokens, vocabulary.types, strict=True)
    ids = {token: id_ for id_, (token, type_) in enumerate(typed) if type_ == _NORMAL}
    ranked = []
    for token, id_ in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-vocabulary.scores[id_], id_, left, right))
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(ranked)]


def _around_text(vocabulary: GgufVocabulary) -> processors.TemplateProcessing:
    """Under names of their own, since a token's text may mean something else in a template."""
    named: dict[str, str] = {}
    if vocabulary.add_bos and vocabulary.bos:
        named["begin"] = vocabulary.bos
    if vocabulary.add_eos and vocabulary.eos:
        named["end"] = vocabulary.eos
    return processors.TemplateProcessing(
        single=[name for name in ("begin", "$A", "end") if name == "$A" or name in named],
        special_tokens=[
            {"id": name, "ids": [vocabulary.tokens.index(token)], "tokens": [token]}
            for name, token in named.items()
        ],
    )


def _split_as_gpt2(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = splitters.ByteLevel(add_prefix_space=False)


def _split_as_smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = splitters.Sequence(
        [splitters.Digits(individual_digits=True), splitters.ByteLevel(add_prefix_space=False)]
    )


def _split_as_llama3(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = _words(number=r"\p{N}{1,3}")


def _split_as_qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _words(number=r"\p{N}")


def _words(number: str) -> splitters.Sequence:
    pattern = Regex(_WORDS.replace("NUMBER", number))
    return splitters.Sequence(
        [
            splitters.Split(pattern, behavior="isolated"),
            splitters.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITTERS: Mapping[str, Callable[[Tokenizer], None]] = {
    "default": _split_as_gpt2,
    "gpt-2": _split_as_gpt2,
    "smollm": _split_as_smollm,
    "starcoder": _split_as_smollm,
    "refact": _split_as_smollm,
    "llama-bpe": _split_as_llama3,
    "llama3": _split_as_llama3,
    "llama-v3": _split_as_llama3,
    "qwen2": _split_as_qwen2,
}


def _array(metadata: Mapping[str, Any], name: str, kind: type[_T]) -> list[_T]:
    values = metadata.get(_PREFIX + name)
    if not isinstance(values, list) or not values:
        raise ModelError(f"the GGUF file has no {_PREFIX}{name}")
    if not all(isinstance(value, kind) for value in values):
        raise ModelError(f"the GGUF file's {_PREFIX}{name} is no list of {kind.__name__}")
    return values


def _by_id(metadata: Mapping[str, Any], name: str, kind: type[_T], size: int) -> list[_T]:
    values = _array(metadata, name, kind)
    if len(values) != size:
        raise ModelError(
            f"the GGUF file's {_PREFIX}{name} has {len(values)} entries for {size} tokens"
        )
    return values


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise ModelError(f"the GGUF file's merge {merge!r} is not two tokens and a space")
        pairs.append((left, right))
    return pairs


def _named(metadata: Mapping[str, Any], name: str, tokens: list[str]) -> str | None:
    id_ = metadata.get(_PREFIX + name)
    if id_ is None:
        return None
    if not isinstance(id_, int) or id_ not in range(len(tokens)):
        raise ModelError(f"the GGUF file's {_PREFIX}{name} {id_} is beyond its vocabulary")
    return tokens[id_]


def _unsupported(what: str, found: object, known: Iterable[str]) -> ModelError:
    return ModelError(
        f"the GGUF file's {what} {found!r} is not supported; supported are {', '.join(known)}"
    )
