"""Rotary position embeddings as ``config.json`` describes them.

Owns the keys of each scaling kind, in the spellings of transformers 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import RopeScaling, RopeSpec

__all__ = ["read_rope"]

_SCALING_NEEDS: Mapping[str, tuple[RopeScaling, tuple[str, ...]]] = {
    "default": (RopeScaling.NONE, ()),
    "linear": (RopeScaling.LINEAR, ("factor",)),
    "dynamic": (RopeScaling.DYNAMIC, ("factor",)),
    "yarn": (RopeScaling.YARN, ("factor",)),
    "llama3": (RopeScaling.LLAMA3, ("factor", "low_freq_factor", "high_freq_factor")),
    "longrope": (RopeScaling.LONGROPE, ()),
    "su": (RopeScaling.LONGROPE, ()),
}
_NO_NUMBERS = frozenset(
    {"type", "rope_type", "rope_theta", "partial_rotary_factor", "short_factor", "long_factor"}
)
_MOST = 1e9
_TRAINED = "original_max_position_embeddings"


def read_rope(config: Fields, head_dim: int, context_length: int) -> RopeSpec:
    """Transformers 5 keeps all of it in ``rope_parameters``; before, theta stood beside it.

    Where kinds of layers differ, those that see everything are meant.
    """
    section = config.section("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    if section.get("full_attention") is not None:
        section = section.section("full_attention")
    key = "rope_type" if section.get("rope_type") is not None else "type"
    kind = section.text(key, "default")
    if kind not in _SCALING_NEEDS:
        raise section.unsupported(key)
    scaling, needed = _SCALING_NEEDS[kind]
    parameters = section.numbers(skip=_NO_NUMBERS)
    for name in needed:
        section.number(name)
    theta = section.number("rope_theta", config.number("rope_theta", 10000.0))
    rope = RopeSpec(theta, _rotated(config, section, head_dim), scaling, parameters)
    trained = section.number(_TRAINED, config.number(_TRAINED, float(context_length)))
    if scaling is RopeScaling.LONGROPE:
        return _long_rope(section, rope, trained, context_length)
    if scaling is RopeScaling.NONE:
        parameters.clear()
    elif scaling in (RopeScaling.YARN, RopeScaling.LLAMA3):
        parameters[_TRAINED] = trained
    return rope


def _rotated(config: Fields, section: Fields, head_dim: int) -> int:
    key = "partial_rotary_factor"
    holder = config if section.get(key) is None else section
    rotated = int(head_dim * holder.number(key, 1.0))
    if not 1 <= rotated <= head_dim:
        raise holder.unsupported(key)
    return rotated


def _long_rope(section: Fields, rope: RopeSpec, trained: float, context_length: int) -> RopeSpec:
    """LongRoPE (Ding et al. 2024): one list of divisors for short contexts, one for long ones.

    The context that is served decides, once and for all: were it the present length, as in the
    original, the tokens of a sequence would depend on how it was cut into steps.
    """
    short, long = (
        _divisors(section, name, rope.dim // 2) for name in ("short_factor", "long_factor")
    )
    if trained <= 1:
        raise section.error(f"{_TRAINED} is {trained:g}, expected more than 1")
    factor = section.number("factor", context_length / trained)
    usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return RopeSpec(
        rope.theta,
        rope.dim,
        rope.scaling,
        {"attention_factor": section.number("attention_factor", usual)},
        long if context_length > trained else short,
    )


def _divisors(section: Fields, key: str, count: int) -> tuple[float, ...]:
    values = section.items(key)
    good = all(isinstance(value, int | float) and 0 < value < _MOST for value in values)
    if len(values) != count or not good:
        raise section.error(f"{key} is no list of {count} numbers above 0; download it again")
    return tuple(map(float, values))
