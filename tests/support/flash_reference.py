"""Plain functions with the signatures of the FlashAttention packages, and how to install them.

The parameters are those of the real functions, so a call that fits here fits there. They refuse
what the real ones refuse: tables that are not int32, blocks of a size that they cannot take.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from chairlift.kernels.flash import Flash, Needs, flash_rows
from chairlift.kernels.reference import paged_attention

__all__ = [
    "FUNCTIONS",
    "attend",
    "fa3_with_kvcache",
    "fa4_varlen",
    "flash_attn_varlen",
    "install",
    "vllm_copy_varlen",
    "vllm_flash_attn_varlen",
]


def install(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Make ``module`` and the packages that it lies in importable, with these functions."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        fake = ModuleType(name)
        fake.__spec__ = ModuleSpec(name, None)
        fake.__path__ = []
        monkeypatch.setitem(sys.modules, name, fake)
    for name, function in functions.items():
        setattr(fake, name, function)


def attend(
    flash: Flash, needs: Needs, steps: list[tuple[int, int]], seed: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """One step of sequences of (context, rows), on random numbers, and what it should be."""
    (scoring,) = needs.scorings
    numbers = torch.Generator().manual_seed(seed)
    width = max(-(-context // needs.block_size) for context, _ in steps)
    order = torch.randperm(len(steps) * width, generator=numbers).view(len(steps), width)
    shape = order.numel(), needs.block_size, needs.num_kv_heads, needs.head_dim
    keys, values = torch.randn(2, *shape, generator=numbers).to(needs.dtype)
    total = sum(count for _, count in steps)
    query = torch.randn(total, needs.num_heads, needs.head_dim, generator=numbers)
    query = query.to(needs.dtype)
    out = torch.full_like(query, torch.nan, device=device)
    contexts, counts = (torch.tensor(part) for part in zip(*steps, strict=True))
    rows = flash_rows(
        order.to(device),
        contexts.to(device),
        counts.to(device),
        (int(counts.max()), int(contexts.max())),
    )
    caches = keys.to(device), values.to(device)
    flash.attend(query.to(device), caches, rows, scoring, out=out)
    expected = paged_attention(
        query.double(),
        (keys.double(), values.double()),
        order,
        contexts,
        counts,
        scale=scoring.scale,
        window=scoring.window,
        cap=scoring.soft_cap,
    )
    return out.double().cpu(), expected


class _StandIn:
    """A function with parameters as given in ``text``, which ``compute`` finds by their names."""

    def __init__(self, text: str, compute: Callable[[SimpleNamespace], Any]) -> None:
        self.__signature__ = inspect.signature(eval(f"lambda {text}: None"))
        self._compute = compute

    def __call__(self, *values: Any, **by_name: Any) -> Any:
        bound = self.__signature__.bind(*values, **by_name)
        bound.apply_defaults()
        return self._compute(SimpleNamespace(**bound.arguments))


def _varlen(call: SimpleNamespace) -> Tensor:
    block_size = 16 if hasattr(call, "out") else 256
    assert call.k.shape[1] % block_size == 0
    assert call.cu_seqlens_k.dtype == torch.int32
    assert call.max_seqlen_k >= int(call.cu_seqlens_k.diff().max())
    attended = _paged(call, call.k, call.v, call.cu_seqlens_k.diff(), call.block_table)
    if getattr(call, "out", None) is None:
        return attended
    return cast(Tensor, call.out.copy_(attended))


def _vllm_copy(call: SimpleNamespace) -> Tensor:
    assert call.cu_seqlens_k is None and call.fa_version in (2, 3)
    attended = _paged(call, call.k, call.v, call.seqused_k, call.block_table)
    return cast(Tensor, call.out.copy_(attended))


def _fa3(call: SimpleNamespace) -> Tensor:
    return _paged(call, call.k_cache, call.v_cache, call.cache_seqlens, call.page_table)


def _fa4(call: SimpleNamespace) -> tuple[Tensor, None]:
    call.window_size = [-1 if side is None else side for side in call.window_size]
    return _paged(call, call.k, call.v, call.seqused_k, call.page_table), None


flash_attn_varlen = _StandIn(
    "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False, block_table=None",
    _varlen,
)
"""``flash_attn.flash_attn_varlen_func`` of 2.8."""

vllm_flash_attn_varlen = _StandIn(
    "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False, block_table=None, *, out=None",
    _varlen,
)
"""``vllm_flash_attn.flash_attn_varlen_func`` of 2.6.2."""

vllm_copy_varlen = _StandIn(
    "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, "
    "q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None, "
    "return_softmax_lse=False, out=None, scheduler_metadata=None, q_descale=None, "
    "k_descale=None, v_descale=None, num_splits=0, fa_version=2, s_aux=None",
    _vllm_copy,
)
"""``vllm.vllm_flash_attn.flash_attn_varlen_func``."""

fa3_with_kvcache = _StandIn(
    "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
    "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
    "q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
    "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    _fa3,
)
"""``flash_attn_interface.flash_attn_with_kvcache`` of FlashAttention 3."""

fa4_varlen = _StandIn(
    "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
    "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, "
    "gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, "
    "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, "
    "deterministic=False",
    _fa4,
)
"""``flash_attn.cute.flash_attn_varlen_func`` of 4.0, up to parameters about training."""

FUNCTIONS = {
    "flash_attn_interface": ("flash_attn_with_kvcache", fa3_with_kvcache),
    "flash_attn.cute": ("flash_attn_varlen_func", fa4_varlen),
    "vllm.vllm_flash_attn": ("flash_attn_varlen_func", vllm_copy_varlen),
    "vllm_flash_attn": ("flash_attn_varlen_func", vllm_flash_attn_varlen),
    "flash_attn": ("flash_attn_varlen_func", flash_attn_varlen),
}
"""By module: the name there, and its stand-in."""


def _paged(
    call: SimpleNamespace, key_cache: Tensor, value_cache: Tensor, contexts: Tensor, tables: Tensor
) -> Tensor:
    """The mask's last row and column stand for the last query and the last key.

    In float64, so that the order of sums leaves no trace in a result of half precision.
    """
    query, starts = call.q, call.cu_seqlens_q.tolist()
    assert {call.cu_seqlens_q.dtype, contexts.dtype, tables.dtype} == {torch.int32}
    assert call.max_seqlen_q >= int(call.cu_seqlens_q.diff().max())
    out = torch.zeros_like(query)
    group = query.shape[1] // key_cache.shape[2]
    for index, context in enumerate(contexts.tolist()):
        rows = slice(starts[index], starts[index + 1])
        blocks = tables[index, : -(-context // key_cache.shape[1])]
        keys, values = (
            cache[blocks].flatten(0, 1)[:context].double() for cache in (key_cache, value_cache)
        )
        shared = query[rows].double().unflatten(1, (-1, group))
        scores = torch.einsum("qhgd,khd->hgqk", shared, keys)
        scores *= query.shape[2] ** -0.5 if call.softmax_scale is None else call.softmax_scale
        if call.softcap > 0:
            scores = (scores / call.softcap).tanh() * call.softcap
        hidden = _hidden(call, starts[index + 1] - starts[index], context)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        attended = torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2)
        out[rows] = attended.to(query.dtype)
    return out


def _hidden(call: SimpleNamespace, count: int, context: int) -> Tensor:
    distance = torch.arange(context) - torch.arange(context - count, context)[:, None]
    left, right = call.window_size or (-1, -1)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if call.causal or right >= 0:
        hidden |= distance > (0 if call.causal else right)
    return hidden
