"""Rotary position embedding: how fast each pair of a head's elements turns.

Owns the frequencies of every scaling kind, and the angles of positions. There is one
implementation, which production and reference share, since it runs once, at load.
It works in float32 and in the order of operations in which models are trained and published, so
that angles at large positions agree with theirs to the last bit. Cosines and sines are those of
the float32 angles, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["rope_angles", "rope_frequencies"]


def rope_frequencies(
    theta: float,
    dim: int,
    *,
    scaling: str,
    parameters: Mapping[str, float],
    max_positions: int,
    divisors: Sequence[float] = (),
) -> tuple[Tensor, float]:
    """Radians a position for each pair, and the factor on cosines and sines.

    Args:
        theta: base of the wavelengths.
        dim: rotated elements of a head, even.
        scaling: ``none``, ``linear``, ``dynamic``, ``yarn``, ``llama3``, ``longrope`` or
            ``factors``; the last is unscaled here, its divisors come with the weights.
        parameters: of the scaling kind, by their Hugging Face names.
        max_positions: the longest context that is served. ``dynamic`` stretches for it once and
            for all: were the stretch to follow the present length, as in the original, the
            tokens of a sequence would depend on how it was cut into steps.
        divisors: of each pair's frequency, for ``longrope``.

    Returns:
        (dim / 2,) float32, and a number that is 1 for all kinds but ``yarn`` and ``longrope``.

    Raises:
        ValueError: unknown kind.
        KeyError: a parameter that the kind needs is missing.
    """
    if scaling in ("none", "factors"):
        return _plain(theta, dim), 1.0
    if scaling == "linear":
        return _plain(theta, dim) / parameters["factor"], 1.0
    if scaling == "dynamic":
        return _dynamic(theta, dim, parameters, max_positions), 1.0
    if scaling == "llama3":
        return _llama3(theta, dim, parameters), 1.0
    if scaling == "longrope":
        wavelengths = torch.tensor(divisors) * _wavelengths(theta, dim)
        return 1.0 / wavelengths, parameters["attention_factor"]
    if scaling == "yarn":
        return _yarn(theta, dim, parameters)
    raise ValueError(f"unknown rotary scaling {scaling!r}")


def rope_angles(
    frequencies: Tensor, positions: Tensor, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (rows, dim / 2), of ``positions`` (rows,).

    In float64 until the end: float32 functions may treat the last few numbers of a tensor in
    another way than the rest, and so give a position other bits in a table of another length.
    """
    angles = (positions[:, None].float() * frequencies).double()
    return angles.cos().float() * factor, angles.sin().float() * factor


def _wavelengths(theta: float, dim: int) -> Tensor:
    """Positions for one radian: (dim / 2,), from 1 up to almost theta."""
    return torch.pow(theta, torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _plain(theta: float, dim: int) -> Tensor:
    return 1.0 / _wavelengths(theta, dim)


def _dynamic(theta: float, dim: int, parameters: Mapping[str, float], length: int) -> Tensor:
    """Neural-tangent-kernel stretch of the base, for contexts longer than the trained ones."""
    factor = parameters["factor"]
    trained = parameters.get("original_max_position_embeddings") or length
    stretch = factor * max(length, trained) / trained - (factor - 1)
    return _plain(theta * stretch ** (dim / (dim - 2)), dim)


def _llama3(theta: float, dim: int, parameters: Mapping[str, float]) -> Tensor:
    """Long waves are slowed by ``factor``, short ones kept, those between interpolated."""
    frequencies = _plain(theta, dim)
    factor = parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    trained = parameters["original_max_position_embeddings"]
    turns = trained / (2 * math.pi / frequencies)  # full turns within the trained context
    share = (turns - low) / (high - low)
    between = (1 - share) * frequencies / factor + share * frequencies
    slowed = torch.where(turns < low, frequencies / factor, between)
    return torch.where(turns > high, frequencies, slowed)


def _yarn(theta: float, dim: int, parameters: Mapping[str, float]) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): a ramp between kept and interpolated, over the pairs' turns."""
    factor = parameters["factor"]
    trained = parameters["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_that_turns(parameters.get("beta_fast") or 32)
    last = pair_that_turns(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = (last - first) or 0.001
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    wavelengths = _wavelengths(theta, dim)
    frequencies = 1.0 / (factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
    return frequencies, _yarn_attention_factor(factor, parameters)


def _yarn_attention_factor(factor: float, parameters: Mapping[str, float]) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return given

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if scale and scale_all:
        return growth(scale) / growth(scale_all)
    return growth(1.0)
