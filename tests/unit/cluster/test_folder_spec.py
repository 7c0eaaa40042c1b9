from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.cluster.folder_spec import read_folder_spec
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeScaling, RopeSpec
from support.tiny_llama import CONFIG, CONTEXT, VOCAB


def folder_with(folder: Path, generation: Any = None, **config: Any) -> Path:
    """A folder without weights; ``config`` replaces or adds keys of the usual one."""
    folder = folder / "My-Tiny_Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(CONFIG) | config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def spec_of(folder: Path, **config: Any) -> ModelSpec:
    return read_folder_spec(folder_with(folder, **config))


def refusal(folder: Path, **config: Any) -> str:
    path = folder_with(folder, **config)
    with pytest.raises(ModelError) as caught:
        read_folder_spec(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_folder_is_described(tmp_path: Path) -> None:
    assert spec_of(tmp_path) == ModelSpec(
        path=tmp_path / "My-Tiny_Llama",
        format=ModelFormat.SAFETENSORS,
        name="My-Tiny_Llama",
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=10000.0, dim=8),
        context_length=CONTEXT,
        tied_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2,),
    )


def test_switches_and_a_head_size_of_its_own_are_read(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    )
    assert (spec.attention_bias, spec.mlp_bias, spec.tied_embeddings) == (True, True, True)
    assert (spec.head_dim, spec.rope.dim) == (16, 16)


def test_null_means_the_default(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, head_dim=None, num_key_value_heads=None, rope_scaling=None, rope_theta=None
    )
    assert (spec.head_dim, spec.num_kv_heads) == (8, 4)
    assert spec.rope == RopeSpec(theta=10000.0, dim=8)


@pytest.mark.parametrize("window", [None, CONTEXT])
def test_mistral_runs_when_its_window_holds_the_whole_context(
    tmp_path: Path, window: int | None
) -> None:
    spec = spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=window)
    assert spec.architecture == "mistral"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["BertModel"]}, "architecture is 'BertModel'; Chairlift runs Llama"),
        ({"architectures": None}, "architecture is missing"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architecture is ['LlamaForCausalLM']"),
        ({"sliding_window": 64}, "sliding_window = 64 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types = "),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
        ({"num_local_experts": 8}, "num_local_experts = 8 is not supported"),
        ({"torch_dtype": "float64"}, "torch_dtype = 'float64' is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention = "),
        ({"rope_parameters": {"sliding_attention": {}}}, "sliding_attention is {}, expected"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
        ({"rope_scaling": {"type": "mrope"}}, "type = 'mrope' is not supported"),
    ],
)
def test_what_chairlift_does_not_run_is_named(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, **config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": "40"}, "vocab_size is '40'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"eos_token_id": [2, VOCAB]}, "eos_token_id is [2, 40]"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor is '2'"),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 0,
                }
            },
            "original_max_position_embeddings is 0",
        ),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, **config)


def test_a_long_value_is_not_shown_whole(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, hidden_size="x" * 10_000)) < 500


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, "{}\xff"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = folder_with(tmp_path)
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json .*download it again"):
        read_folder_spec(folder)


# End tokens.


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([5, 6], None, (5, 6)),
        (None, None, ()),
        (2, {"eos_token_id": [7, 8]}, (7, 8, 2)),
        (2, {"eos_token_id": 2}, (2,)),
        (2, {}, (2,)),
        (None, {"eos_token_id": 0}, (0,)),
    ],
)
def test_end_tokens_of_both_files_are_united(
    tmp_path: Path, config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    spec = spec_of(tmp_path, generation=generation, eos_token_id=config)
    assert spec.eos_token_ids == expected


# Rotary scaling, in the spellings of transformers 4 and 5.


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 500000}, RopeSpec(500000.0, 8)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, RopeSpec(7.0, 8)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 7.0},
            RopeSpec(7.0, 8, RopeScaling.LINEAR, {"factor": 2.0}),
        ),
        (
            {"rope_scaling": {"rope_type": "dynamic", "type": "linear", "factor": 2.0}},
            RopeSpec(10000.0, 8, RopeScaling.DYNAMIC, {"factor": 2.0}),
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeSpec(
                10000.0,
                8,
                RopeScaling.LLAMA3,
                {**LLAMA3, "original_max_position_embeddings": float(CONTEXT)},
            ),
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 9.0,
                    "factor": 4.0,
                    "attention_factor": None,
                    "truncate": False,
                    "original_max_position_embeddings": 32,
                },
                "rope_theta": 7.0,
            },
            RopeSpec(
                9.0,
                8,
                RopeScaling.YARN,
                {"factor": 4.0, "truncate": 0.0, "original_max_position_embeddings": 32.0},
            ),
        ),
    ],
)
def test_rotary_scaling(tmp_path: Path, config: dict[str, Any], expected: RopeSpec) -> None:
    assert spec_of(tmp_path, **config).rope == expected
