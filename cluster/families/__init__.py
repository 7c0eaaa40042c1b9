"""The model families that Chairlift runs: one module each, with only what differs from Llama.

Owns the registry, by the architectures that ``config.json`` names.
"""

from __future__ import annotations

from chairlift.cluster.families.family import Family, StoredTensor
from chairlift.cluster.families.gemma2 import GEMMA2
from chairlift.cluster.families.gemma3 import GEMMA3, GEMMA3_WITH_IMAGES
from chairlift.cluster.families.llama import LLAMA
from chairlift.cluster.families.mistral import MISTRAL
from chairlift.cluster.families.mixtral import MIXTRAL
from chairlift.cluster.families.phi3 import PHI3
from chairlift.cluster.families.qwen2 import QWEN2
from chairlift.cluster.families.qwen3 import QWEN3
from chairlift.cluster.families.qwen3_moe import QWEN3_MOE
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["ALL_FAMILIES", "Family", "StoredTensor", "gguf_pairs_adjacent", "stored_tensor"]

ALL_FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    GEMMA3_WITH_IMAGES,
    PHI3,
    MIXTRAL,
    QWEN3_MOE,
)


def stored_tensor(spec: ModelSpec, name: str) -> StoredTensor:
    """Where the safetensors files of a model keep a tensor of ``cluster.model_files``."""
    return _family(spec).stored(spec, name)


def gguf_pairs_adjacent(spec: ModelSpec) -> bool:
    """Whether the two rows of a rotated pair stand side by side in the GGUF file of a model."""
    gguf = _family(spec).gguf
    return gguf is not None and gguf.pairs_adjacent


def _family(spec: ModelSpec) -> Family:
    return next(family for family in ALL_FAMILIES if family.name == spec.architecture)
