from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch

from chairlift.cluster.errors import ModelError
from chairlift.cluster.gguf_spec import read_gguf_spec
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeScaling, RopeSpec
from support.tiny_llama import CONTEXT, HEAD_DIM, TOKENS, VOCAB, random_weights, write_gguf

Metadata = Callable[[gguf.GGUFWriter], None]


def nothing(writer: gguf.GGUFWriter) -> None:
    pass


def spec_of(
    folder: Path,
    metadata: Metadata = nothing,
    *,
    without: tuple[str, ...] = (),
    tensors: dict[str, torch.Tensor] | None = None,
) -> ModelSpec:
    path = write_gguf(
        folder / "Tiny File.gguf",
        tensors or random_weights(),
        metadata=metadata,
        without=frozenset(without),
    )
    return read_gguf_spec(path)


def refusal(folder: Path, metadata: Metadata = nothing, *, without: tuple[str, ...] = ()) -> str:
    with pytest.raises(ModelError) as caught:
        spec_of(folder, metadata, without=without)
    assert "Tiny File.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_file_is_described(tmp_path: Path) -> None:
    assert spec_of(tmp_path) == ModelSpec(
        path=tmp_path / "Tiny File.gguf",
        format=ModelFormat.GGUF,
        name="Tiny File",
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=pytest.approx(1e-5),
        rope=RopeSpec(theta=10000.0, dim=8),
        context_length=CONTEXT,
        tied_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2, 0),
    )


def test_optional_keys_have_the_defaults_of_llama_cpp(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, without=("head_count_kv", "freq_base", "dimension_count"))
    assert spec.num_kv_heads == spec.num_heads
    assert spec.rope == RopeSpec(theta=10000.0, dim=HEAD_DIM)


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "head_count",
        "layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    assert f"{key} is missing" in refusal(tmp_path, without=(key,))


def test_tensors_tell_tying_and_biases(tmp_path: Path) -> None:
    weights = random_weights(tied=True, attention_bias=True, mlp_bias=True)
    spec = spec_of(tmp_path, tensors=weights)
    assert (spec.tied_embeddings, spec.attention_bias, spec.mlp_bias) == (True, True, True)


def test_the_models_own_name_becomes_a_slug(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, lambda writer: writer.add_name("  Meta Llama-3.1 8B (Instruct)"))
    assert spec.name == "meta-llama-3.1-8b-instruct"


def test_lists_of_one_size_for_all_layers_are_that_size(tmp_path: Path) -> None:
    def lists(writer: gguf.GGUFWriter) -> None:
        writer.add_head_count([4, 4])
        writer.add_head_count_kv([2, 2])
        writer.add_feed_forward_length([64, 64])

    without = ("head_count", "head_count_kv", "feed_forward_length")
    spec = spec_of(tmp_path, lists, without=without)
    assert (spec.num_heads, spec.num_kv_heads, spec.intermediate_size) == (4, 2, 64)


def test_layers_of_different_sizes_are_unsupported(tmp_path: Path) -> None:
    message = refusal(
        tmp_path, lambda writer: writer.add_head_count_kv([2, 4]), without=("head_count_kv",)
    )
    assert "head_count_kv = [2, 4] is not supported" in message


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (lambda writer: writer.add_expert_count(8), "expert_count = 8"),
        (lambda writer: writer.add_sliding_window(64), "sliding_window = 64"),
        (lambda writer: writer.add_final_logit_softcapping(30.0), "softcapping = 30.0"),
        (lambda writer: writer.add_uint16("split.count", 3), "llama-gguf-split --merge"),
        (lambda writer: writer.add_value_length(16), "value_length = 16"),
        (lambda writer: writer.add_key_length(16), "dimension_count = 8"),
        (
            lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            "'longrope' is not supported",
        ),
        (lambda writer: writer.add_eot_token_id(VOCAB), f"eot_token_id is {VOCAB}"),
    ],
)
def test_what_chairlift_does_not_run_is_named(
    tmp_path: Path, metadata: Metadata, words: str
) -> None:
    assert words in refusal(tmp_path, metadata)


@pytest.mark.parametrize(
    ("key", "metadata"),
    [
        ("context_length", lambda writer: writer.add_context_length(0)),
        ("block_count", lambda writer: writer.add_block_count(4_000_000_000)),
        ("embedding_length", lambda writer: writer.add_embedding_length(33)),
        ("layer_norm_rms_epsilon", lambda writer: writer.add_layer_norm_rms_eps(math.nan)),
        ("freq_base", lambda writer: writer.add_rope_freq_base(-1.0)),
        ("head_count", lambda writer: writer.add_string("llama.attention.head_count", "4")),
        ("tokens", lambda writer: writer.add_string("tokenizer.ggml.tokens", "none")),
        ("tokens", lambda writer: writer.add_token_list([*TOKENS, "one too many"])),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, key: str, metadata: Metadata) -> None:
    message = refusal(tmp_path, metadata, without=(key,))
    assert "download the file again" in message


@pytest.mark.parametrize(
    ("kind", "stored"), [("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16")]
)
def test_matrices_tell_what_they_are_best_decoded_to(
    tmp_path: Path, kind: str, stored: str
) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        random_weights(),
        type_of=lambda name: gguf.GGMLQuantizationType[kind],
    )
    assert read_gguf_spec(path).stored_type == stored


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture is 'mamba'; Chairlift runs llama, qwen2"):
        read_gguf_spec(path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"token_embd\.weight"):
        spec_of(tmp_path, tensors={"model.norm.weight": torch.zeros(32)})


# End tokens.


def test_the_files_end_tokens_come_before_known_markers(tmp_path: Path) -> None:
    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(7)
        writer.add_eom_token_id(5)

    assert spec_of(tmp_path, more).eos_token_ids == (2, 7, 5, 0)


def test_a_marker_that_is_ordinary_text_ends_nothing(tmp_path: Path) -> None:
    """A vocabulary may hold ``</s>`` because it occurs in web pages."""

    def tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["</s>", "<|eot_id|>", *TOKENS[2:]])
        writer.add_token_types([1, 3, 3] + [1] * (VOCAB - 3))

    spec = spec_of(tmp_path, tokens, without=("tokens", "token_type"))
    assert spec.eos_token_ids == (2, 1)


def test_a_file_may_name_no_end_token(tmp_path: Path) -> None:
    without = ("tokens", "token_type", "eos_token_id")
    assert spec_of(tmp_path, without=without).eos_token_ids == ()


def test_the_embedding_may_have_more_rows_than_there_are_tokens(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, lambda writer: writer.add_token_list(TOKENS[:-5]), without=("tokens",))
    assert spec.vocab_size == VOCAB


# Rotary scaling.


def scale(kind: gguf.RopeScalingType | None, factor: float | None = None) -> Metadata:
    def add(writer: gguf.GGUFWriter) -> None:
        if kind is not None:
            writer.add_rope_scaling_type(kind)
        if factor is not None:
            writer.add_rope_scaling_factor(factor)

    return add


@pytest.mark.parametrize(
    ("metadata", "scaling", "parameters"),
    [
        (scale(None), RopeScaling.NONE, {}),
        (scale(gguf.RopeScalingType.NONE, 4.0), RopeScaling.NONE, {}),
        (scale(gguf.RopeScalingType.LINEAR, 4.0), RopeScaling.LINEAR, {"factor": 4.0}),
        (scale(None, 4.0), RopeScaling.LINEAR, {"factor": 4.0}),
        (
            lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0),
            RopeScaling.LINEAR,
            {"factor": 2.0},
        ),
        (
            scale(gguf.RopeScalingType.YARN, 4.0),
            RopeScaling.YARN,
            {"factor": 4.0, "original_max_position_embeddings": CONTEXT},
        ),
    ],
)
def test_rotary_scaling(
    tmp_path: Path, metadata: Metadata, scaling: RopeScaling, parameters: dict[str, float]
) -> None:
    rope = spec_of(tmp_path, metadata).rope
    assert (rope.scaling, rope.parameters) == (scaling, parameters)


def test_yarn_settings_get_the_names_of_hugging_face(tmp_path: Path) -> None:
    def yarn(writer: gguf.GGUFWriter) -> None:
        scale(gguf.RopeScalingType.YARN, 8.0)(writer)
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_yarn_beta_fast(64.0)
        writer.add_rope_scaling_yarn_beta_slow(2.0)
        writer.add_rope_scaling_attn_factors(0.5)

    assert spec_of(tmp_path, yarn).rope.parameters == {
        "factor": 8.0,
        "original_max_position_embeddings": 16.0,
        "beta_fast": 64.0,
        "beta_slow": 2.0,
        "attention_factor": pytest.approx(0.5 * (1 + 0.1 * math.log(8))),
    }


def test_divisors_in_the_file_are_the_scaling(tmp_path: Path) -> None:
    tensors = random_weights() | {"rope_freqs.weight": torch.ones(HEAD_DIM // 2)}
    assert spec_of(tmp_path, tensors=tensors).rope.scaling is RopeScaling.FACTORS


def test_divisors_together_with_another_scaling_are_refused(tmp_path: Path) -> None:
    tensors = random_weights() | {"rope_freqs.weight": torch.ones(HEAD_DIM // 2)}
    with pytest.raises(ModelError, match="not supported"):
        spec_of(tmp_path, scale(gguf.RopeScalingType.LINEAR, 4.0), tensors=tensors)
