"""What a model is, without its weights: architecture, sizes, end tokens.

Owns the one description that router, workers and command line share; ``cluster.model_files``
reads it from disk.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["ExpertsSpec", "ModelFormat", "ModelSpec", "RopeScaling", "RopeSpec"]


class ModelFormat(enum.StrEnum):
    """How the files are laid out."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


class RopeScaling(enum.StrEnum):
    """How rotary frequencies are stretched for long contexts."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LLAMA3 = "llama3"
    FACTORS = "factors"
    """Explicit divisors of each frequency, as GGUF files carry them (``rope_freqs.weight``)."""
    LONGROPE = "longrope"
    """Explicit divisors that the configuration has (``RopeSpec.divisors``)."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding; angles are ``position × theta^(-2i/dim)``, scaled.

    Attributes:
        theta: base of the wavelengths.
        dim: elements of a head that are rotated, the first ones; the others stay as they are.
        scaling: how frequencies are stretched.
        parameters: the numbers of the scaling kind by their Hugging Face names (``factor``,
            ``low_freq_factor``, ``original_max_position_embeddings`` …).
        divisors: of each frequency, for ``longrope``.
    """

    theta: float
    dim: int
    scaling: RopeScaling = RopeScaling.NONE
    parameters: dict[str, float] = field(default_factory=dict)
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts in place of each layer's MLP; see ``kernels.interface.Experts``."""

    count: int
    per_token: int
    intermediate_size: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder.

    Attributes:
        rope: of layers that see everything; ``local_rope`` of those with a window, if another.
        attention_bias: of queries, keys and values; ``attention_out_bias`` of what follows.
        window: positions that a token sees in local layers, its own included; None without such.
        local_layers: which layers have the window.
        query_scale: of attention's scores; None for ``head_dim ** -0.5``.
        attention_soft_cap, final_soft_cap: of scores, and of logits: ``cap × tanh(x / cap)``.
        qk_norm: each head of queries and keys is normed before it is rotated.
        post_norms: what attention and MLP add is normed, too.
        norm_offset: is added to the weights of norms as files have them.
        embedding_scale: embeddings are multiplied with it.
        experts: in place of the MLPs, of which ``intermediate_size`` then means nothing.
        stored_type: of the weights in the files: ``float32``, ``bfloat16`` or ``float16``; where
            they are quantised, what they are best decoded to.
    """

    path: Path
    format: ModelFormat
    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    context_length: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    attention_out_bias: bool = False
    local_rope: RopeSpec | None = None
    window: int | None = None
    local_layers: frozenset[int] = frozenset()
    query_scale: float | None = None
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    activation: Literal["silu", "gelu_tanh"] = "silu"
    experts: ExpertsSpec | None = None
    stored_type: str = "float32"

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of K and V of one position over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
