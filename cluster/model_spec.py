"""What a model is, without its weights: architecture, sizes, end tokens.

Owns the one description that router, workers and command line share; ``cluster.model_files``
reads it from disk.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ModelFormat", "ModelSpec", "RopeScaling", "RopeSpec"]


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


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding; angles are ``position × theta^(-2i/dim)``, scaled.

    ``parameters`` holds the numbers of the scaling kind by their Hugging Face names (``factor``,
    ``low_freq_factor``, ``original_max_position_embeddings`` …).
    """

    theta: float
    dim: int
    scaling: RopeScaling = RopeScaling.NONE
    parameters: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder of the Llama family."""

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

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of K and V of one position over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
