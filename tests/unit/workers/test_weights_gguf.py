from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from chairlift.cluster.errors import ModelError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.workers.weights_gguf import GgufWeights
from support.tiny_llama import TOKENS, VOCAB, random_weights, write_gguf

KINDS = gguf.GGMLQuantizationType
NO_DECODER = {KINDS.I8, KINDS.I16, KINDS.I32, KINDS.I64, KINDS.F64, KINDS.Q8_1, KINDS.Q8_K}
WITH_DECODER = sorted(set(KINDS) - NO_DECODER - {KINDS.Q1_0})
WIDE = 512
"""Elements of a row, so that blocks of 256 fit."""


def source_with(path: Path, kind: KINDS, raw: np.ndarray) -> GgufWeights:
    """A file whose embedding has the given encoding and bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(TOKENS)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufWeights(read_spec(path))


@pytest.mark.parametrize("kind", WITH_DECODER, ids=lambda kind: kind.name)
def test_every_encoding_that_the_gguf_package_decodes_is_read(tmp_path: Path, kind: KINDS) -> None:
    """Random bytes are a valid tensor of any encoding; decoding goes in pieces, so sizes vary."""
    rows = VOCAB * 5
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind.value)
    raw = random.integers(0, 255, (rows, WIDE // block * block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, kind)
        found = source_with(tmp_path / "m.gguf", kind, raw).read("model.embed_tokens.weight")
    assert found.dtype is torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", [KINDS.I8, KINDS.Q8_K], ids=lambda kind: kind.name)
def test_an_encoding_without_a_decoder_is_named(tmp_path: Path, kind: KINDS) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.zeros((VOCAB, WIDE // block * block_bytes), np.uint8)
    source = source_with(tmp_path / "m.gguf", kind, raw)
    with pytest.raises(ModelError, match=rf"embed_tokens\.weight has the type {kind.name}"):
        source.read("model.embed_tokens.weight")


def test_rotated_rows_are_restored_in_quantised_tensors(tmp_path: Path) -> None:
    """Rows are encoded one by one, so order and encoding do not mix."""
    weights = random_weights()
    path = write_gguf(tmp_path / "m.gguf", weights, type_of=lambda name: KINDS.Q8_0)
    source = GgufWeights(read_spec(path))
    for name in ("q_proj", "k_proj", "v_proj"):
        full = f"model.layers.1.self_attn.{name}.weight"
        expected = dequantize(quantize(weights[full].numpy(), KINDS.Q8_0), KINDS.Q8_0)
        np.testing.assert_array_equal(source.read(full).numpy(), expected)


def test_the_embedded_models_tensors_are_what_its_encodings_say() -> None:
    path = resolve_model("smollm2")
    source, file = GgufWeights(read_spec(path)), GgufFile.open(path)
    for file_name, name in (
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.17.attn_v.weight", "model.layers.17.self_attn.v_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        tensor = file.tensors[file_name]
        expected = dequantize(tensor.raw, KINDS[tensor.type_name])
        np.testing.assert_array_equal(source.read(name).numpy(), expected)


def test_the_embedded_models_query_rows_alternate_between_the_halves_of_a_head() -> None:
    path = resolve_model("smollm2")
    tensor = GgufFile.open(path).tensors["blk.3.attn_q.weight"]
    stored = dequantize(tensor.raw, KINDS[tensor.type_name]).reshape(9, 64, 576)
    found = GgufWeights(read_spec(path)).read("model.layers.3.self_attn.q_proj.weight").numpy()
    found = found.reshape(9, 64, 576)
    np.testing.assert_array_equal(found[:, :32], stored[:, 0::2])
    np.testing.assert_array_equal(found[:, 32:], stored[:, 1::2])
