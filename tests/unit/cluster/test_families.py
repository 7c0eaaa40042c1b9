"""Configurations as they are published, and what is read from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.cluster.families import ALL_FAMILIES, Family, StoredTensor, stored_tensor
from chairlift.cluster.families.gemma2 import GEMMA2
from chairlift.cluster.families.gemma3 import GEMMA3
from chairlift.cluster.folder_spec import read_folder_spec
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_files import read_spec, weight_shapes
from chairlift.cluster.model_spec import ExpertsSpec, ModelSpec, RopeScaling, RopeSpec

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def spec_of(folder: Path, architecture: str, **config: Any) -> ModelSpec:
    values = {"architectures": [architecture]} | SIZES | config
    values = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    return read_spec(folder)


def refusal(folder: Path, architecture: str, **config: Any) -> str:
    with pytest.raises(ModelError) as caught:
        spec_of(folder, architecture, **config)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_architecture_and_no_name_belongs_to_two_families() -> None:
    architectures = [each for family in ALL_FAMILIES for each in family.architectures]
    assert len(set(architectures)) == len(architectures)
    assert len({family.name for family in ALL_FAMILIES}) == len(ALL_FAMILIES)


def test_the_type_of_the_weights_is_read_in_both_spellings(tmp_path: Path) -> None:
    assert spec_of(tmp_path, "LlamaForCausalLM").stored_type == "bfloat16"
    assert spec_of(tmp_path, "LlamaForCausalLM", dtype="float16").stored_type == "float16"
    assert spec_of(tmp_path, "LlamaForCausalLM", torch_dtype=...).stored_type == "float32"


# Windows.


def test_every_layer_of_a_mistral_has_its_window(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "MistralForCausalLM", sliding_window=1024)
    assert (spec.window, spec.local_layers) == (1024, frozenset(range(12)))


def test_a_mistral_that_says_nothing_has_the_usual_window_and_null_means_none(
    tmp_path: Path,
) -> None:
    longer = {"max_position_embeddings": 32768}
    assert spec_of(tmp_path, "MistralForCausalLM", **longer).window == 4096
    assert spec_of(tmp_path, "MistralForCausalLM", sliding_window=None, **longer).window is None


@pytest.mark.parametrize("window", [4096, 100_000])
def test_a_window_that_holds_the_whole_context_is_none(tmp_path: Path, window: int) -> None:
    spec = spec_of(tmp_path, "MistralForCausalLM", sliding_window=window)
    assert (spec.window, spec.local_layers) == (None, frozenset())


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwens_window_counts_only_when_it_is_switched_on(tmp_path: Path, architecture: str) -> None:
    window = {"sliding_window": 1024, "max_window_layers": 9}
    assert spec_of(tmp_path, architecture, use_sliding_window=False, **window).window is None
    spec = spec_of(tmp_path, architecture, use_sliding_window=True, **window)
    assert (spec.window, spec.local_layers) == (1024, frozenset({9, 10, 11}))


def test_layer_types_say_which_layers_are_local(tmp_path: Path) -> None:
    kinds = ["full_attention"] * 11 + ["sliding_attention"]
    spec = spec_of(
        tmp_path,
        "Qwen2ForCausalLM",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
        layer_types=kinds,
    )
    assert spec.local_layers == {11}


# What each family does differently.


def test_qwen2_has_biases_before_attention_but_not_behind_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Qwen2ForCausalLM")
    assert (spec.attention_bias, spec.attention_out_bias, spec.mlp_bias) == (True, False, False)
    names = weight_shapes(spec)
    assert "model.layers.0.self_attn.q_proj.bias" in names
    assert "model.layers.0.self_attn.o_proj.bias" not in names


def test_qwen3_norms_heads_of_a_size_of_their_own(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Qwen3ForCausalLM")
    assert (spec.qk_norm, spec.head_dim, spec.attention_bias) == (True, 128, False)
    assert weight_shapes(spec)["model.layers.11.self_attn.k_norm.weight"] == (128,)


def test_gemma2_as_published(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        "Gemma2ForCausalLM",
        head_dim=32,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=144,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        sliding_window=512,
        cache_implementation="hybrid",
    )
    assert spec == replace(
        spec,
        window=512,
        local_layers=frozenset(range(0, 12, 2)),
        query_scale=1 / 12,
        attention_soft_cap=50.0,
        final_soft_cap=30.0,
        post_norms=True,
        norm_offset=1.0,
        embedding_scale=8.0,
        activation="gelu_tanh",
        tied_embeddings=True,
        qk_norm=False,
    )


def test_gemma3_as_published(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        "Gemma3ForCausalLM",
        head_dim=32,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=256,
        sliding_window=512,
        sliding_window_pattern=6,
        rope_theta=1_000_000,
        rope_local_base_freq=10_000,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert (spec.window, spec.local_layers) == (512, {0, 1, 2, 3, 4, 6, 7, 8, 9, 10})
    assert spec.rope == RopeSpec(1e6, 32, RopeScaling.LINEAR, {"factor": 8.0})
    assert spec.local_rope == RopeSpec(1e4, 32)
    assert (spec.attention_soft_cap, spec.final_soft_cap) == (None, None)
    assert (spec.qk_norm, spec.query_scale, spec.tied_embeddings) == (True, 1 / 16, True)


def test_of_a_gemma_that_sees_images_the_text_part_is_read(tmp_path: Path) -> None:
    """The published sections for text leave out what is usual."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_folder_spec(tmp_path)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.vocab_size, spec.context_length) == (262208, 131072)
    assert (spec.eos_token_ids, spec.stored_type) == ((1, 106), "bfloat16")
    prefix = "language_model.model.layers.0."
    assert stored_tensor(spec, "model.layers.0.mlp_post_norm.weight") == StoredTensor(
        f"{prefix}post_feedforward_layernorm.weight"
    )


def test_phi3s_divisors_are_those_of_the_context_that_is_served(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    phi = {
        "partial_rotary_factor": 0.75,
        "rope_scaling": scaling,
        "original_max_position_embeddings": 1024,
    }
    spec = spec_of(tmp_path, "Phi3ForCausalLM", **phi)
    assert (spec.rope.dim, spec.head_dim) == (12, 16)
    assert spec.rope.divisors == (2.0,) * 6
    assert spec.rope.parameters["attention_factor"] == pytest.approx(1.2**0.5)  # ln 4 / ln 1024
    spec = spec_of(tmp_path, "Phi3ForCausalLM", **phi, max_position_embeddings=1024)
    assert spec.rope.divisors == (1.0,) * 6
    assert spec.rope.parameters["attention_factor"] == 1.0


def test_phi3s_fused_matrices_are_read_in_parts(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Phi3ForCausalLM")
    layer = "model.layers.3."
    assert stored_tensor(spec, f"{layer}self_attn.v_proj.weight") == StoredTensor(
        f"{layer}self_attn.qkv_proj.weight", first_row=64 + 32, rows=32
    )
    assert stored_tensor(spec, f"{layer}mlp.up_proj.weight") == StoredTensor(
        f"{layer}mlp.gate_up_proj.weight", first_row=96, rows=96
    )


def test_mixtrals_experts_have_other_names(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "MixtralForCausalLM", num_local_experts=4, sliding_window=None)
    assert spec.experts == ExpertsSpec(4, 2, 96, normalise=True)
    names = [
        stored_tensor(spec, name).name
        for name in weight_shapes(spec)
        if "layers.0.mlp.gate." in name or "layers.0.mlp.experts.3" in name
    ]
    prefix = "model.layers.0.block_sparse_moe."
    assert names == [
        f"{prefix}gate.weight",
        *(f"{prefix}experts.3.{letter}.weight" for letter in ("w1", "w3", "w2")),
    ]


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_qwen3s_experts_are_counted_in_both_spellings(tmp_path: Path, key: str) -> None:
    spec = spec_of(
        tmp_path,
        "Qwen3MoeForCausalLM",
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        mlp_only_layers=[],
        **{key: 6},
    )
    assert spec.experts == ExpertsSpec(6, 2, 24, normalise=True)
    assert weight_shapes(spec)["model.layers.0.mlp.experts.5.down_proj.weight"] == (64, 24)


@pytest.mark.parametrize(
    ("family", "layers", "scale"),
    [(GEMMA2, 42, None), (GEMMA2, 46, 0.25), (GEMMA3, 34, None), (GEMMA3, 62, 0.25)],
)
def test_the_largest_gemmas_in_gguf_scale_queries_by_the_hidden_size(
    tmp_path: Path, family: Family, layers: int, scale: float | None
) -> None:
    base = spec_of(tmp_path, "LlamaForCausalLM", head_dim=32, num_hidden_layers=layers)
    fields = Fields("file", {"attention.sliding_window": 512})
    assert family.gguf is not None
    spec = family.gguf.describe(base, fields)
    assert (spec.query_scale, spec.window, spec.norm_offset) == (scale, 512, 0.0)


# What is not computed is refused by name.


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        ("MistralForCausalLM", {"mlp_bias": True}, "mlp_bias = True is not supported"),
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window is 0"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 12}, "layer_types = "),
        ("Qwen2ForCausalLM", {"use_sliding_window": "no"}, "use_sliding_window is 'no'"),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "max_window_layers": -1},
            "max_window_layers is -1",
        ),
        ("Qwen2ForCausalLM", {"rope_scaling": {"type": "mrope"}}, "type = 'mrope'"),
        ("Qwen3ForCausalLM", {"num_experts": 8}, "num_experts = 8 is not supported"),
        ("Gemma2ForCausalLM", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "has 1 entries for 12 layers"),
        ("Gemma2ForCausalLM", {"layer_types": ["chunked_attention"] * 12}, "layer_types = "),
        ("Gemma2ForCausalLM", {"layer_types": "all"}, "layer_types is 'all'"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}, "full_attention": {}}},
            "sliding_attention: rope_type = 'yarn'",
        ),
        ("Gemma3ForConditionalGeneration", {}, "text_config is no mapping"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn'"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.7}, "a head of 11 cannot be rotated"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor is no list of 8 numbers",
        ),
        (
            "Phi3ForCausalLM",
            {
                "rope_scaling": {"type": "su", "short_factor": [1] * 8, "long_factor": [1] * 8},
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings is 1",
        ),
        ("MixtralForCausalLM", {"num_local_experts": 10**6}, "num_local_experts is 1000000"),
        ("MixtralForCausalLM", {"num_local_experts": 1}, "2 of 1 experts"),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}, "mlp_only_layers = [0]"),
    ],
)
def test_what_chairlift_does_not_compute_is_named(
    tmp_path: Path, architecture: str, config: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, architecture, **config)
