"""From logits to tokens, and to how likely they were, on the device.

``kernels.sampling`` has the rules. Owns how the last token of a rule is found without sorting. A
row is one program, which looks at it as often as it must. Numbers are ranked by integers that rise
with them, and the least of those that a rule leaves is found by halving: count, or sum up, what
lies at or above a middle. It ends sooner when the count is what was asked for, or when one token is
left to be found. So the tokens that remain are those whose rank is at least ``least``, of those
with exactly this one the ones up to ``last``, as of equally likely tokens the first are kept.

Weights are summed in float64, a stretch at once and stretch after stretch; which numbers are summed
in which order depends on the vocabulary alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.sampler import CHOOSING_WORDS, Choosing, Likely, Wanted

__all__ = ["TritonSampler"]

_STRETCH = 4096
_WARPS = 16


class TritonSampler:
    """Implements ``kernels.sampler.DeviceSampler``."""

    def sample(self, logits: Tensor, choosing: Choosing) -> Tensor:
        """One token for each row, (rows,) int64; waits for nothing."""
        words = torch.from_numpy(np.ascontiguousarray(choosing).view(np.int64))
        words = words.view(-1, CHOOSING_WORDS).to(logits.device, non_blocking=True)
        tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        self.sample_into(logits, words, out=tokens)
        return tokens

    def sample_into(self, logits: Tensor, choosing: Tensor, *, out: Tensor) -> None:
        rows, vocabulary = logits.shape
        sums = torch.empty(
            rows, triton.cdiv(vocabulary, _STRETCH), dtype=torch.float64, device=logits.device
        )
        _sample[(rows,)](
            *(logits, choosing, sums, out),
            VOCABULARY=vocabulary,
            STRETCH=min(_STRETCH, triton.next_power_of_2(vocabulary)),
            STRETCHES=triton.next_power_of_2(sums.shape[1]),
            num_warps=_WARPS,
        )

    def log_probabilities(self, logits: Tensor, wanted: Sequence[Wanted]) -> Iterable[Likely]:
        """One answer for each that is wanted; waits for the device."""
        if not wanted:
            return
        rows, vocabulary = logits.shape
        asked = np.array(wanted, np.int64)
        counts = np.minimum(asked[:, 2], vocabulary, out=asked[:, 2])
        if (asked < 0).any() or (asked[:, :2] >= (rows, vocabulary)).any():
            raise IndexError(f"a row or a token is outside {rows} rows of {vocabulary} tokens")
        most = int(counts.max())
        values = torch.empty(len(asked), 1 + most, dtype=torch.float64, device=logits.device)
        tokens = torch.empty(len(asked), most, dtype=torch.int64, device=logits.device)
        _likeliest[(len(asked),)](
            *(logits, torch.from_numpy(asked).to(logits.device), values, tokens, most),
            VOCABULARY=vocabulary,
            STRETCH=min(_STRETCH, triton.next_power_of_2(vocabulary)),
            num_warps=_WARPS,
        )
        for count, ids, (chosen, *rest) in zip(
            counts.tolist(), tokens.tolist(), values.tolist(), strict=True
        ):
            found = sorted(zip(ids[:count], rest[:count], strict=True), key=_by_likelihood)
            yield chosen, tuple(found)


def _by_likelihood(likely: tuple[int, float]) -> tuple[float, int]:
    return -likely[1], likely[0]


@triton.jit
def _rank(x):
    """An integer that rises with ``x``; −0 and 0 have the same."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _load(row, at, is_strange, VOCABULARY: tl.constexpr):
    """Logits, −∞ behind the end; of a strange row, as the rules clean them."""
    x = tl.load(row + at, mask=at < VOCABULARY, other=-float("inf"))
    least = -3.4028234663852886e38
    cleaned = tl.where(x == x, tl.minimum(tl.maximum(x, least), -least), least)
    return tl.where(is_strange & (at < VOCABULARY), cleaned, x)


@triton.jit
def _find_largest(row, VOCABULARY: tl.constexpr, STRETCH: tl.constexpr):
    """The largest logit, its first token, and whether the row is strange."""
    peaks = tl.full([STRETCH], -float("inf"), tl.float32)
    strange = tl.zeros([STRETCH], tl.int32)
    for start in range(0, VOCABULARY, STRETCH):
        x = _load(row, start + tl.arange(0, STRETCH), False, VOCABULARY)
        strange |= ((x != x) | (x == float("inf"))).to(tl.int32)
        peaks = tl.maximum(peaks, x)
    largest = tl.max(peaks, 0)
    is_strange = (tl.max(strange, 0) > 0) | (largest == -float("inf"))
    best = tl.full([STRETCH], VOCABULARY, tl.int32)
    if is_strange:
        largest = tl.full([], -float("inf"), tl.float32)
        for start in range(0, VOCABULARY, STRETCH):
            x = _load(row, start + tl.arange(0, STRETCH), True, VOCABULARY)
            largest = tl.maximum(largest, tl.max(x, 0))
    for start in range(0, VOCABULARY, STRETCH):
        at = start + tl.arange(0, STRETCH)
        x = _load(row, at, is_strange, VOCABULARY)
        best = tl.minimum(best, tl.where((x == largest) & (at < VOCABULARY), at, VOCABULARY))
    return largest, tl.min(best, 0), is_strange


@triton.jit
def _weigh(x, at, largest, inverse, min_p, least, last):
    """Weights of a stretch; 0 for those that a rule has dropped."""
    weight = tl.exp((x - largest) * inverse)
    rank = _rank(x)
    is_kept = (weight >= min_p) & ((rank > least) | ((rank == least) & (at <= last)))
    return tl.where(is_kept, weight, 0.0)


@triton.jit
def _above(
    row, middle, largest, inverse, min_p, least, last, is_strange,
    VOCABULARY: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """As ``_count_above``, and what those weigh of them that remain."""
    count, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
    lowest = tl.full([], 2**31 - 1, tl.int32)
    for start in range(0, VOCABULARY, STRETCH):
        at = start + tl.arange(0, STRETCH)
        x = _load(row, at, is_strange, VOCABULARY)
        rank, is_above = _rank(x), (_rank(x) >= middle) & (at < VOCABULARY)
        weight = _weigh(x, at, largest, inverse, min_p, least, last)
        count += tl.sum(is_above.to(tl.int32), 0)
        lowest = tl.minimum(lowest, tl.min(tl.where(is_above, rank, 2**31 - 1), 0))
        mass += tl.sum(tl.where(is_above, weight, 0.0).to(tl.float64), 0)
    return count, lowest.to(tl.int64), mass


@triton.jit
def _count_above(row, middle, is_strange, VOCABULARY: tl.constexpr, STRETCH: tl.constexpr):
    """How many tokens rank at ``middle`` or above, and the lowest rank that one of them has."""
    count, lowest = tl.full([], 0, tl.int32), tl.full([], 2**31 - 1, tl.int32)
    for start in range(0, VOCABULARY, STRETCH):
        at = start + tl.arange(0, STRETCH)
        x = _load(row, at, is_strange, VOCABULARY)
        rank, is_above = _rank(x), (_rank(x) >= middle) & (at < VOCABULARY)
        count += tl.sum(is_above.to(tl.int32), 0)
        lowest = tl.minimum(lowest, tl.min(tl.where(is_above, rank, 2**31 - 1), 0))
    return count, lowest.to(tl.int64)


@triton.jit
def _nth_of(row, rank, count, is_strange, VOCABULARY: tl.constexpr, STRETCH: tl.constexpr):
    """The token that is the ``count``-th with this rank; the last token of all if there is none."""
    seen, found = tl.full([], 0, tl.int32), tl.full([], VOCABULARY, tl.int32)
    for start in range(0, VOCABULARY, STRETCH):
        at = start + tl.arange(0, STRETCH)
        is_equal = (_rank(_load(row, at, is_strange, VOCABULARY)) == rank) & (at < VOCABULARY)
        running = seen + tl.cumsum(is_equal.to(tl.int32), 0)
        here = tl.where(is_equal & (running == count), at, VOCABULARY)
        found = tl.minimum(found, tl.min(here, 0))
        seen += tl.sum(is_equal.to(tl.int32), 0)
    return found


@triton.jit
def _keep_likeliest(
    row, wanted, largest, is_strange, VOCABULARY: tl.constexpr, STRETCH: tl.constexpr
):
    """The last of the ``wanted`` likeliest: ``least`` and ``last``."""
    low, high = tl.full([], -(2**31), tl.int64), _rank(largest).to(tl.int64)
    over = tl.full([], 0, tl.int32)  # tokens above ``high``
    is_found = tl.full([], 0, tl.int32)
    while (low < high) & (is_found == 0):
        middle = (low + high + 1) >> 1
        count, lowest = _count_above(row, middle, is_strange, VOCABULARY, STRETCH)
        if count >= wanted:
            low, is_found = lowest, (count == wanted).to(tl.int32)
        else:
            high, over = middle - 1, count
    last = tl.full([], VOCABULARY, tl.int32)
    if is_found == 0:
        last = _nth_of(row, low.to(tl.int32), wanted - over, is_strange, VOCABULARY, STRETCH)
    return low.to(tl.int32), last


@triton.jit
def _keep_nucleus(
    row, limit, largest, inverse, min_p, least, last, is_strange,
    VOCABULARY: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """The last token with which the likelier ones reach the limit, of those that remain."""
    low, high = least.to(tl.int64), _rank(largest).to(tl.int64)
    over, under = tl.full([], 0, tl.int32), tl.full([], VOCABULARY, tl.int32)
    mass_over = tl.full([], 0.0, tl.float64)
    while (low < high) & (under - over > 1):
        middle = (low + high + 1) >> 1
        count, lowest, mass = _above(
            row, middle, largest, inverse, min_p, least, last, is_strange, VOCABULARY, STRETCH
        )
        if mass >= limit:
            low, under = lowest, count
        else:
            high, over, mass_over = middle - 1, count, mass
    new_least, new_last = low.to(tl.int32), tl.full([], VOCABULARY, tl.int32)
    if under - over > 1:
        # Equally likely ones: as many as it takes, one at least.
        bits = tl.where(new_least < 0, new_least ^ 0x7FFFFFFF, new_least)
        one = tl.exp((bits.to(tl.float32, bitcast=True) - largest) * inverse).to(tl.float64)
        count = tl.ceil((limit - mass_over) / tl.maximum(one, 1e-300)).to(tl.int32)
        count = tl.minimum(tl.maximum(count, 1), VOCABULARY)
        new_last = _nth_of(row, new_least, count, is_strange, VOCABULARY, STRETCH)
    if new_least == least:
        new_last = tl.minimum(new_last, last)
    return new_least, new_last


@triton.jit
def _uniform(seed, choice, position):
    """A number in [0, 1): ``kernels.philox``."""
    zero = tl.full([1], 0, tl.uint32)
    word, other, _, _ = tl.philox_impl(
        zero + position.to(tl.uint32),
        zero + choice.to(tl.uint32),
        zero,
        zero,
        zero + seed.to(tl.uint32),
        zero + (seed.to(tl.uint64) >> 32).to(tl.uint32),
    )
    bits = (word.to(tl.int64) << 21) ^ (other >> 11).to(tl.int64)
    return tl.sum(bits, 0).to(tl.float64) * 1.1102230246251565e-16  # 2⁻⁵³


@triton.jit
def _draw(
    row, uniform, sums, largest, inverse, min_p, least, last, is_strange,
    VOCABULARY: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    """The first token at which the running sum exceeds the share ``uniform`` of the total."""
    for start in range(0, VOCABULARY, STRETCH):
        at = start + tl.arange(0, STRETCH)
        x = _load(row, at, is_strange, VOCABULARY)
        weight = _weigh(x, at, largest, inverse, min_p, least, last).to(tl.float64)
        tl.store(sums + start // STRETCH, tl.sum(weight, 0))
    tl.debug_barrier()
    index = tl.arange(0, STRETCHES)
    count: tl.constexpr = (VOCABULARY + STRETCH - 1) // STRETCH
    running = tl.cumsum(tl.load(sums + index, mask=index < count, other=0.0), 0)
    target = uniform * tl.max(running, 0)
    # Rounded up to the total, the target would be reached by none: then it is the last.
    mine = tl.sum((running <= target).to(tl.int32), 0)
    fallback = tl.min(tl.where(running == tl.max(running, 0), index, STRETCHES), 0)
    mine = tl.minimum(mine, fallback)
    before = tl.sum(tl.where(index == mine - 1, running, 0.0), 0)
    at = mine * STRETCH + tl.arange(0, STRETCH)
    x = _load(row, at, is_strange, VOCABULARY)
    weight = _weigh(x, at, largest, inverse, min_p, least, last).to(tl.float64)
    is_over = (weight > 0.0) & (before + tl.cumsum(weight, 0) > target)
    first = tl.min(tl.where(is_over, at, VOCABULARY), 0)
    final = tl.max(tl.where(weight > 0.0, at, 0), 0)
    return tl.minimum(first, final)


@triton.jit
def _sample(
    logits, choosing, sums, out,
    VOCABULARY: tl.constexpr, STRETCH: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row, by = logits + index * VOCABULARY, choosing + index * 6
    temperature = tl.load(by.to(tl.pointer_type(tl.float32)))
    min_p = tl.load(by.to(tl.pointer_type(tl.float32)) + 1)
    top_p = tl.load(by.to(tl.pointer_type(tl.float64)) + 1)
    top_k = tl.load(by + 2)
    largest, token, is_strange = _find_largest(row, VOCABULARY, STRETCH)
    if temperature >= 1e-5:
        inverse = tl.div_rn(1.0, temperature)
        least, last = tl.full([], -(2**31), tl.int32), tl.full([], VOCABULARY, tl.int32)
        if (top_k > 0) & (top_k < VOCABULARY):
            least, last = _keep_likeliest(
                row, top_k.to(tl.int32), largest, is_strange, VOCABULARY, STRETCH
            )
        if top_p < 1.0:
            _, _, total = _above(
                row, -(2**31), largest, inverse, min_p, least, last, is_strange,
                VOCABULARY, STRETCH,
            )  # fmt: skip
            least, last = _keep_nucleus(
                row, top_p * total, largest, inverse, min_p, least, last, is_strange,
                VOCABULARY, STRETCH,
            )  # fmt: skip
        uniform = _uniform(tl.load(by + 3), tl.load(by + 4), tl.load(by + 5))
        count: tl.constexpr = (VOCABULARY + STRETCH - 1) // STRETCH
        token = _draw(
            row, uniform, sums + index * count, largest, inverse, min_p, least, last, is_strange,
            VOCABULARY, STRETCH, STRETCHES,
        )  # fmt: skip
    tl.store(out + index, token.to(tl.int64))


@triton.jit(do_not_specialize=["most"])
def _likeliest(
    logits, wanted, values, tokens, most, VOCABULARY: tl.constexpr, STRETCH: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(wanted + 3 * index) * VOCABULARY
    token, count = tl.load(wanted + 3 * index + 1), tl.load(wanted + 3 * index + 2).to(tl.int32)
    largest, _, is_strange = _find_largest(row, VOCABULARY, STRETCH)
    _, _, mass = _above(
        row, -(2**31), largest, 1.0, 0.0, -(2**31), VOCABULARY, is_strange, VOCABULARY, STRETCH
    )
    shift = tl.log(mass)
    one = _load(row, token + tl.arange(0, 1), is_strange, VOCABULARY).to(tl.float64)
    value_at = values + index * (most + 1)
    tl.store(value_at + tl.arange(0, 1), (one - largest) - shift)
    if count > 0:
        least, last = _keep_likeliest(row, count, largest, is_strange, VOCABULARY, STRETCH)
        found = tl.full([], 0, tl.int32)
        for start in range(0, VOCABULARY, STRETCH):
            at = start + tl.arange(0, STRETCH)
            x = _load(row, at, is_strange, VOCABULARY)
            is_kept = (_rank(x) > least) | ((_rank(x) == least) & (at <= last))
            is_kept &= at < VOCABULARY
            place = found + tl.cumsum(is_kept.to(tl.int32), 0) - 1
            tl.store(tokens + index * most + place, at.to(tl.int64), mask=is_kept)
            value = (x.to(tl.float64) - largest) - shift
            tl.store(value_at + 1 + place, value, mask=is_kept)
            found += tl.sum(is_kept.to(tl.int32), 0)
