from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.kernels.quantised import Quantised
from chairlift.workers.weights import load_weights, stored_encodings
from support.tiny_llama import HEAD_DIM, random_weights, write_folder, write_gguf

Q8_0 = GGMLQuantizationType.Q8_0


def ignore(share: float) -> None:
    pass


def load(path: Path) -> dict[str, torch.Tensor]:
    return load_weights(read_spec(path), ignore)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_both_formats_load_to_the_same_tensors(tmp_path: Path, tied: bool, bias: bool) -> None:
    weights = random_weights(tied=tied, attention_bias=bias, mlp_bias=bias)
    config = {"tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias}
    assert_same(load(write_folder(tmp_path / "folder", weights, **config)), weights)
    assert_same(load(write_gguf(tmp_path / "m.gguf", weights)), weights)


def test_names_and_row_order_agree_with_transformers(tmp_path: Path) -> None:
    """Its reader of GGUF files is a second opinion on llama.cpp's conventions."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    weights = random_weights()
    config = transformers.AutoConfig.from_pretrained(write_folder(tmp_path / "folder", weights))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    path = write_gguf(tmp_path / "m.gguf", weights)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    assert_same(load(path), theirs["tensors"])


def test_tensors_are_float32_contiguous_and_writable(tmp_path: Path) -> None:
    weights = random_weights()
    folder = write_folder(tmp_path / "folder", {k: v.bfloat16() for k, v in weights.items()})
    for path in (folder, write_gguf(tmp_path / "m.gguf", weights)):
        for tensor in load(path).values():
            assert tensor.dtype is torch.float32
            assert tensor.is_contiguous()
            tensor.zero_()


def test_the_files_are_not_changed_through_the_tensors(tmp_path: Path) -> None:
    path = write_folder(tmp_path, random_weights())
    before = (path / "model.safetensors").read_bytes()
    for tensor in load(path).values():
        tensor.zero_()
    assert (path / "model.safetensors").read_bytes() == before


def test_divisors_of_the_frequencies_are_loaded(tmp_path: Path) -> None:
    divisors = torch.linspace(1.0, 8.0, HEAD_DIM // 2)
    path = write_gguf(tmp_path / "m.gguf", random_weights() | {"rope_freqs.weight": divisors})
    assert torch.equal(load(path)["rope_freqs"], divisors)


def test_matrices_are_kept_as_the_file_has_them_where_that_is_asked_for(tmp_path: Path) -> None:
    """Rows that are rotated change places, in blocks as in numbers."""
    path = write_gguf(tmp_path / "m.gguf", random_weights(), type_of=lambda _: Q8_0)
    assert stored_encodings(read_spec(path)) == {"Q8_0"}
    decoded, kept = load(path), load_weights(read_spec(path), ignore, keep={"Q8_0", "Q4_0"})
    assert kept.keys() == decoded.keys()
    for name, matrix in kept.items():
        if isinstance(matrix, Quantised):
            assert matrix.shape == decoded[name].shape
            matrix = torch.from_numpy(dequantize(matrix.blocks.numpy(), Q8_0))
        assert torch.equal(matrix, decoded[name])
    assert {name for name, each in kept.items() if isinstance(each, Quantised)} == {
        name for name, each in decoded.items() if each.ndim == 2
    }


@pytest.mark.parametrize("format", ["folder", "m.gguf"])
def test_what_is_not_quantised_cannot_be_kept(tmp_path: Path, format: str) -> None:
    write = write_folder if format == "folder" else write_gguf
    spec = read_spec(write(tmp_path / format, random_weights()))
    assert not stored_encodings(spec) & {"Q4_0", "Q8_0"}
    kept = load_weights(spec, ignore, keep={"Q4_0", "Q8_0"})
    assert all(isinstance(each, torch.Tensor) for each in kept.values())


def test_progress_rises_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    weights = random_weights()
    load_weights(read_spec(write_gguf(tmp_path / "m.gguf", weights)), shares.append)
    assert len(shares) == len(weights)
    assert 0 < shares[0] < shares[-1] == 1.0
    assert shares == sorted(shares)


@pytest.mark.parametrize("format", ["folder", "m.gguf"])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, format: str, name: str) -> None:
    weights = random_weights()
    del weights[name]
    write = write_folder if format == "folder" else write_gguf
    with pytest.raises(ModelError, match=f"lacks the tensor {name}"):
        load(write(tmp_path / format, weights))


@pytest.mark.parametrize("format", ["folder", "m.gguf"])
@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.k_proj.weight"]
)
def test_a_wrong_shape_is_named(tmp_path: Path, format: str, name: str) -> None:
    weights = random_weights()
    weights[name] = torch.zeros(48, 32)
    write = write_folder if format == "folder" else write_gguf
    with pytest.raises(ModelError, match=rf"{name} has the shape \(48, 32\), expected"):
        load(write(tmp_path / format, weights))


@pytest.mark.parametrize("format", ["folder", "m.gguf"])
@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_norm.weight", "model.layers.2.mlp.up_proj.weight"]
)
def test_a_tensor_that_would_be_left_out_is_refused(tmp_path: Path, format: str, name: str) -> None:
    """A norm or a layer that is silently left out gives wrong text."""
    weights = random_weights() | {name: torch.ones(8)}
    write = write_folder if format == "folder" else write_gguf
    with pytest.raises(ModelError, match="no tensor"):
        load(write(tmp_path / format, weights))


def test_an_output_matrix_beside_tied_embeddings_is_left_out(tmp_path: Path) -> None:
    path = write_folder(tmp_path, random_weights(tied=False), tie_word_embeddings=True)
    assert "lm_head.weight" not in load(path)


def test_the_embedded_model_loads_whole() -> None:
    spec = read_spec(resolve_model("smollm2"))
    weights = load_weights(spec, ignore)
    assert len(weights) == 2 + 30 * 9
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert weights["model.embed_tokens.weight"].shape == (49152, 576)
    assert "lm_head.weight" not in weights
