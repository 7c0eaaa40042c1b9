"""The truth that every kernel is compared with: plain, slow and obviously right.

Owns the meaning of each kernel. Works in whatever precision its inputs have; tests give it
float64. Loops over rows, heads and positions instead of being clever, and shares no code with
the kernels.

Layout of a K or V cache: (blocks, block_size, kv_heads, head_dim). A *slot* numbers positions
across the whole cache: ``block × block_size + offset``. A sequence's position ``p`` lives in
block ``table[p // block_size]`` at offset ``p % block_size``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from chairlift.kernels.logits import Adjustment

__all__ = [
    "Scoring",
    "adjusted",
    "apply_rope",
    "experts",
    "gated",
    "kv_write",
    "log_probabilities",
    "norm_heads",
    "paged_attention",
    "quantised_linear",
    "rms_norm",
    "sample",
    "sampling_distribution",
    "soft_cap",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) × weight`` over the last dimension."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def norm_heads(x: Tensor, query: Tensor, key: Tensor, num_heads: int, eps: float) -> Tensor:
    """``rms_norm`` of each head: x (rows, heads, head_dim), queries first, then keys."""
    out = x.clone()
    for head in range(x.shape[1]):
        out[:, head] = rms_norm(x[:, head], query if head < num_heads else key, eps)
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs ``(x[i], x[i + dim/2])`` of each head; elements from ``dim`` on pass through.

    Args:
        x: (rows, heads, head_dim).
        cos: (rows, dim / 2), dim ≤ head_dim.
        sin: as ``cos``.
    """
    out = x.clone()
    half = cos.shape[1]
    for row in range(x.shape[0]):
        for pair in range(half):
            first, second = x[row, :, pair], x[row, :, pair + half]
            out[row, :, pair] = first * cos[row, pair] - second * sin[row, pair]
            out[row, :, pair + half] = second * cos[row, pair] + first * sin[row, pair]
    return out


def kv_write(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """Store ``new`` (rows, kv_heads, head_dim) at ``slots`` (rows,) of ``cache``, in place."""
    block_size = cache.shape[1]
    for row, slot in enumerate(slots.tolist()):
        cache[slot // block_size, slot % block_size] = new[row]


class Scoring(TypedDict, total=False):
    """How scores come about.

    Attributes:
        scale: ``1 / sqrt(head_dim)`` if none is given.
        window: positions that a token sees, its own included; None for all.
        cap: see ``soft_cap``; None for none.
    """

    scale: float | None
    window: int | None
    cap: float | None


def paged_attention(
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    block_tables: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    **scoring: Unpack[Scoring],
) -> Tensor:
    """Causal attention of each sequence's last tokens to all its tokens so far.

    Args:
        query: (rows, heads, head_dim); the sequences' rows one after the other.
        caches: K and V.
        block_tables: (sequences, blocks); entries behind a sequence's end mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1.
        **scoring: see ``Scoring``.

    Returns:
        As ``query``.
    """
    key_cache, value_cache = caches
    block_size, kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // kv_heads
    scale, window, cap = scoring.get("scale"), scoring.get("window"), scoring.get("cap")
    scale = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    out = torch.empty_like(query)
    row = 0
    for table, context, count in zip(
        block_tables.tolist(), context_lens.tolist(), query_lens.tolist(), strict=True
    ):
        for position in range(context - count, context):
            first = 0 if window is None else max(0, position + 1 - window)
            seen = [(table[p // block_size], p % block_size) for p in range(first, position + 1)]
            keys = torch.stack([key_cache[block, offset] for block, offset in seen])
            values = torch.stack([value_cache[block, offset] for block, offset in seen])
            for head in range(query.shape[1]):
                scores = keys[:, head // group] @ query[row, head] * scale
                if cap is not None:
                    scores = soft_cap(scores, cap)
                out[row, head] = torch.softmax(scores, 0) @ values[:, head // group]
            row += 1
    return out


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """``activation(gate) × up`` of (rows, gate then up)."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return gate / (1 + torch.exp(-gate)) * up
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate / 2 * (1 + torch.tanh(inner)) * up


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """What is small stays nearly as it is; nothing is beyond ``cap``."""
    return cap * torch.tanh(x / cap)


def experts(
    x: Tensor,
    router: Tensor,
    mlps: Sequence[tuple[Tensor, Tensor]],
    *,
    per_token: int,
    normalise: bool,
    activation: str,
) -> Tensor:
    """Each row's likeliest experts, of equal ones the first, weighted by how likely they are.

    Args:
        x: (rows, hidden).
        router: (experts, hidden).
        mlps: of each expert the matrices (gate then up, hidden) and (hidden, gate).
        per_token: how many experts a row takes.
        normalise: divide the weights of those by their sum.
        activation: see ``gated``.
    """
    out = torch.zeros_like(x)
    for row, each in enumerate(x):
        scores = router @ each
        likely = torch.softmax(scores, 0).tolist()
        taken = sorted(range(len(mlps)), key=lambda i: (-scores[i].item(), i))[:per_token]
        total = sum(likely[index] for index in taken) if normalise else 1.0
        for index in taken:
            gate_up, down = mlps[index]
            inner = gated((gate_up @ each)[None], activation)[0]
            out[row] += likely[index] / total * (down @ inner)
    return out


def quantised_linear(
    x: Tensor, codes: Tensor, scales: Tensor, minima: Tensor | None = None
) -> Tensor:
    """``x weightᵀ`` in integers, to the bit: here the order of operations is part of the meaning.

    A weight is ``scale × code + minimum``. Inputs are rounded too: in each group of 32 the largest
    magnitude becomes 127. A group with a largest magnitude below 1e-30 counts as zeros; one that
    holds what is not finite makes its row not a number. Where the largest magnitude is twice the
    mean of those of the row or more, what the rounding left over is rounded once more, in 254
    steps, and multiplied for itself.

    Args:
        x: (rows, inputs) float32; inputs are a multiple of 32.
        codes: (outputs, inputs) whole numbers, signed.
        scales: (outputs, inputs / 32 or inputs / 16) float32.
        minima: (outputs, inputs / 32) float32.
    """
    groups, parts = x.shape[1] // 32, 32 * scales.shape[1] // x.shape[1]
    size = 32 // parts
    out = torch.zeros(x.shape[0], codes.shape[0])
    by_group = x.view(-1, groups, 32)
    largest = by_group.abs().amax(2)
    finite = by_group.isfinite().all(2)
    total = torch.zeros(len(x))
    for group in range(groups):
        total = total + largest[:, group]
    limit = (2.0 * (total / groups)).clamp(min=1e-30)
    rounded, scale, rests = [], [], []
    for group in range(groups):
        most = largest[:, group]
        counts = finite[:, group] & (most >= 1e-30)
        # Not 127.0 / most: torch multiplies with the reciprocal, which rounds twice.
        factor = torch.full_like(most, 127.0) / most
        steps = torch.where(counts[:, None], by_group[:, group] * factor[:, None], 0.0)
        wide = counts & (most >= limit)
        rest = torch.where(wide[:, None], ((steps - steps.round()) * 254.0).round(), 0.0)
        rounded.append(steps.round())
        scale.append(torch.where(counts, most / 127.0, 0.0))
        scale[-1][~finite[:, group]] = torch.nan
        rests.append((wide, rest))

    def add(whole: Tensor, step: Tensor, group: int, to: Tensor) -> Tensor:
        for part in range(parts):
            at = 32 * group + size * part
            those = whole[:, at % 32 : at % 32 + size].double()
            products = those @ codes[:, at : at + size].T.double()
            to = _fused(products.float(), step[:, None] * scales[:, parts * group + part], to)
        return to

    for group in range(groups):
        out = add(rounded[group], scale[group], group, out)
        if minima is not None:
            inputs = scale[group] * rounded[group].sum(1)
            inputs = inputs + scale[group] / 254.0 * rests[group][1].sum(1)
            out = _fused(inputs[:, None], minima[:, group], out)
    for group, (wide, rest) in enumerate(rests):
        out = torch.where(wide[:, None], add(rest, scale[group] / 254.0, group, out), out)
    return out


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a × b + c``, rounded once.

    In float64 the product is exact. The sum is rounded there to the neighbour whose last bit is 1
    unless it is exact (Boldo and Melquiond 2008): then rounding once more does no harm.
    """
    product, other = a.double() * b.double(), c.double()
    total = product + other
    rest = total - product
    error = (product - (total - rest)) + (other - rest)
    bits = total.view(torch.int64)
    away = torch.where((error > 0) == (total > 0), 1, -1)
    odd = torch.where((error != 0) & (bits & 1 == 0) & error.isfinite(), bits + away, bits)
    return odd.view(torch.float64).float()


def adjusted(logits: Tensor, by: Adjustment) -> Tensor:
    """One row (vocabulary,) after bias, penalties and masks; see ``kernels.logits``."""
    limit = torch.finfo(torch.float32).max
    bias = dict(zip(by.biased.tolist(), by.bias.tolist(), strict=True))
    prompt, output = by.prompt.tolist(), by.output.tolist()
    allowed, forbidden = by.allowed.tolist(), by.forbidden.tolist()
    values = []
    for token, logit in enumerate(logits.tolist()):
        value = logit + bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / by.repetition if value > 0 else value * by.repetition
        if token in output:
            value -= by.frequency * output.count(token) + by.presence
        value = -limit if math.isnan(value) else min(max(value, -limit), limit)
        values.append(-math.inf if allowed and token not in allowed else value)
    masked = [-math.inf if token in forbidden else value for token, value in enumerate(values)]
    return torch.tensor(values if max(masked) == -math.inf else masked, dtype=torch.float64)


def log_probabilities(logits: Tensor) -> Tensor:
    """Natural logarithm of each token's probability; of one row, (vocabulary,), without NaN."""
    shifted = logits - logits.max()
    return shifted - shifted.exp().sum().log()


def sampling_distribution(
    logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Probability of each token, (vocabulary,) float64; see ``sampling.sample`` for the rules."""
    largest = torch.finfo(torch.float32).max
    clean = logits.double().nan_to_num(-largest, largest, -largest)
    descending = sorted(range(len(clean)), key=lambda token: (-clean[token].item(), token))
    if temperature == 0:
        probabilities = torch.zeros_like(clean)
        probabilities[descending[0]] = 1.0
        return probabilities
    probabilities = torch.softmax(clean / temperature, 0)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    if top_k:
        probabilities[descending[top_k:]] = 0
    if top_p < 1:
        total, before = probabilities.sum().item(), 0.0
        for token in descending:
            mass = probabilities[token].item()
            if before >= top_p * total:
                probabilities[token] = 0
            before += mass
    return probabilities / probabilities.sum()


def sample(probabilities: Tensor, uniform: float) -> int:
    """The first token at which the running sum of ``probabilities`` exceeds ``uniform``."""
    running, last = 0.0, 0
    for token, mass in enumerate(probabilities.tolist()):
        if mass > 0:
            running, last = running + mass, token
            if running > uniform:
                return token
    return last
