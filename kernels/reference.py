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

import torch
from torch import Tensor

from chairlift.kernels.logits import Adjustment

__all__ = [
    "adjusted",
    "apply_rope",
    "kv_write",
    "log_probabilities",
    "paged_attention",
    "quantised_linear",
    "rms_norm",
    "sample",
    "sampling_distribution",
    "silu_mul",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) × weight`` over the last dimension."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


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


def paged_attention(
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    block_tables: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
) -> Tensor:
    """Causal attention of each sequence's last tokens to all its tokens so far.

    Args:
        query: (rows, heads, head_dim); the sequences' rows one after the other.
        caches: K and V.
        block_tables: (sequences, blocks); entries behind a sequence's end mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1.

    Returns:
        As ``query``.
    """
    key_cache, value_cache = caches
    block_size, kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // kv_heads
    out = torch.empty_like(query)
    row = 0
    for table, context, count in zip(
        block_tables.tolist(), context_lens.tolist(), query_lens.tolist(), strict=True
    ):
        for position in range(context - count, context):
            seen = [(table[p // block_size], p % block_size) for p in range(position + 1)]
            keys = torch.stack([key_cache[block, offset] for block, offset in seen])
            values = torch.stack([value_cache[block, offset] for block, offset in seen])
            for head in range(query.shape[1]):
                scores = keys[:, head // group] @ query[row, head] / math.sqrt(query.shape[2])
                out[row, head] = torch.softmax(scores, 0) @ values[:, head // group]
            row += 1
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) × up`` of (rows, gate then up)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


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
