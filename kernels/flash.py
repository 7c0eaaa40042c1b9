"""FlashAttention behind one narrow function, whichever of its packages is installed.

Owns the choice of the package, the reasons against the others, and the trial that every package
must pass before it is chosen: a small step on the GPU it is to run on, compared with plain torch
and, where exactness is asked for, with itself cut and batched otherwise. So what does not fit is
known, in words, before the first request. Imports a package only when asked to look for one.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.flash_packages import (
    PACKAGES,
    Call,
    FlashRows,
    Needs,
    Package,
    Scoring,
)

__all__ = [
    "Flash",
    "FlashRows",
    "Gpu",
    "Needs",
    "NoFlash",
    "Refusal",
    "Scoring",
    "describe",
    "find_flash",
    "flash_rows",
    "look_for_gpu",
]

# Context and rows of the trial's sequences: a first token, a chunk of a prompt, a long decode.
_TRIAL = ((1, 1), (700, 33), (1500, 1))
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Gpu:
    """Where attention is to run, and its compute capability."""

    device: torch.device
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a package is not used."""

    package: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoFlash:
    """None of the packages can be used."""

    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Flash:
    """The package that is used.

    Attributes:
        package: its name and version.
        exact: a row's bits do not depend on the batch, as far as the trial saw.
        refusals: the better ones, and why not.
    """

    package: str
    exact: bool
    refusals: tuple[Refusal, ...]
    _function: Callable[..., Any] = field(repr=False)
    _arguments: Callable[[Call], dict[str, Any]] = field(repr=False)

    def attend(
        self,
        query: Tensor,
        caches: tuple[Tensor, Tensor],
        rows: FlashRows,
        scoring: Scoring,
        *,
        out: Tensor,
    ) -> None:
        """Causal attention of each sequence's last tokens to all its tokens so far.

        Args:
            query: (rows, heads, head_dim).
            caches: K and V, (blocks, block_size, kv_heads, head_dim), the present rows written.
            rows: of this step.
            scoring: of this layer.
            out: as ``query``.
        """
        call = Call(query, *caches, rows, scoring, out, self.exact)
        result = self._function(**self._arguments(call))
        attended = result[0] if isinstance(result, tuple) else result
        # Not every package writes where it is told to.
        if attended.data_ptr() != out.data_ptr():
            out.copy_(attended)


def flash_rows(
    block_tables: Tensor, context_lens: Tensor, query_lens: Tensor, longest: tuple[int, int]
) -> FlashRows:
    """The rows of a step, once for all its layers; nothing here waits for the GPU.

    Args:
        block_tables: (sequences, blocks).
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1.
        longest: upper bounds of a sequence's rows and of its context.
    """
    return FlashRows(
        query_starts=_starts(query_lens),
        context_lens=context_lens.int(),
        context_starts=_starts(context_lens),
        block_tables=block_tables.int(),
        max_query=longest[0],
        max_context=longest[1],
    )


def look_for_gpu() -> Gpu | None:
    """The GPU that torch uses by default; None where it sees none."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    return Gpu(device, torch.cuda.get_device_capability(device))


def find_flash(needs: Needs, gpu: Gpu | None) -> Flash | NoFlash:
    """The first package that is there, fits and passes the trial."""
    refusals: list[Refusal] = []
    for package in PACKAGES:
        found = _misfit(package, needs, gpu) or _load(package, needs)
        if isinstance(found, Flash) and gpu is not None:
            fault = _trial(found, needs, gpu.device)
            if fault is None:
                return Flash(
                    found.package,
                    found.exact,
                    tuple(refusals),
                    found._function,
                    found._arguments,
                )
            found = fault
        refusals.append(Refusal(package.name, str(found)))
    return NoFlash(tuple(refusals))


def describe(*, exact: bool, block_size: int) -> dict[str, Any]:
    """What would be used here for a common shape of model, for reports: names and reasons."""
    needs = Needs(32, 8, 128, torch.bfloat16, block_size, (Scoring(128**-0.5),), exact)
    found = find_flash(needs, look_for_gpu())
    return {
        "package": found.package if isinstance(found, Flash) else None,
        "refusals": [[refusal.package, refusal.reason] for refusal in found.refusals],
    }


def _starts(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _misfit(package: Package, needs: Needs, gpu: Gpu | None) -> str | None:
    """What can be told without importing the package."""
    if importlib.util.find_spec(package.module.split(".")[0]) is None:
        return "not installed"
    fault = _another_torch(package.distribution)
    if fault is not None:
        return fault
    return "torch sees no GPU" if gpu is None else package.misfit(needs, gpu.capability)


def _another_torch(distribution: str) -> str | None:
    """A package that holds compiled code asks for exactly one torch, if it is honest."""
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    running = torch.__version__.split("+")[0]
    for requirement in requirements:
        built_for = re.match(r"torch\s*\(?==\s*([\d.]+)", requirement)
        if built_for and built_for[1] != running:
            return f"it is built for torch {built_for[1]}, and this is torch {running}"
    return None


def _load(package: Package, needs: Needs) -> Flash | str:
    """The package, imported and with parameters of the names that it will be called by."""
    try:
        module = importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if error.name and f"{package.module}.".startswith(f"{error.name}."):
            return "not installed"
        return f"cannot be imported: {_line(error)}"
    except Exception as error:  # Whatever a foreign library comes up with, it is not usable.
        return f"cannot be imported: {_line(error)}"
    function = getattr(module, package.function, None)
    if function is None:
        return f"has no {package.function}"
    flash = Flash(_titled(package, module), needs.exact, (), function, package.arguments)
    nothing = torch.empty(0)
    rows = FlashRows(nothing, nothing, nothing, nothing, 1, 1)
    for scoring in needs.scorings:
        call = Call(nothing, nothing, nothing, rows, scoring, nothing, needs.exact)
        try:
            inspect.signature(function).bind(**package.arguments(call))
        except (TypeError, ValueError) as error:
            return f"its {package.function} is another one: {_line(error)}"
    return flash


def _titled(package: Package, module: Any) -> str:
    try:
        version = metadata.version(package.distribution)
    except metadata.PackageNotFoundError:
        version = str(getattr(module, "__version__", ""))
    return f"{package.name} {version}".strip()


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class _Span:
    """The positions ``start … end - 1`` of one of the trial's sequences."""

    sequence: int
    start: int
    end: int


def _trial(flash: Flash, needs: Needs, device: torch.device) -> str | None:
    """What is wrong with the package here; None when all is well."""
    try:
        for scoring in needs.scorings:
            fault = _Trial(flash, needs, scoring, device).fault()
            if fault is not None:
                return fault
    except Exception as error:  # A kernel that was not built for this GPU, and whatever else.
        return f"a trial failed: {_line(error)}"
    return None


class _Trial:
    """One scoring on sequences of random numbers, whose blocks lie anywhere."""

    def __init__(self, flash: Flash, needs: Needs, scoring: Scoring, device: torch.device) -> None:
        self._flash, self._scoring = flash, scoring
        random = torch.Generator().manual_seed(1)
        size = needs.block_size
        self._width = -(-max(context for context, _ in _TRIAL) // size)
        order = torch.randperm(len(_TRIAL) * self._width, generator=random)
        self._tables = order.view(len(_TRIAL), -1).to(device)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random).to(device, needs.dtype)

        shape = len(order), size, needs.num_kv_heads, needs.head_dim
        self._caches = numbers(*shape), numbers(*shape)
        self._queries = [numbers(context, needs.num_heads, needs.head_dim) for context, _ in _TRIAL]

    def fault(self) -> str | None:
        spans = [
            _Span(index, context - count, context) for index, (context, count) in enumerate(_TRIAL)
        ]
        together = self._run(spans)
        for span, attended in zip(spans, together, strict=True):
            expected = self._plainly(span)
            if not torch.allclose(attended.float(), expected, _TOLERANCE, _TOLERANCE):
                return "a trial gave other results than plain torch"
        if self._flash.exact:
            for span, attended in zip(spans, together, strict=True):
                last = _Span(span.sequence, span.end - 1, span.end)
                middle = (span.start + span.end + 1) // 2
                first = _Span(span.sequence, span.start, middle)
                alone = self._run([span])[0], self._run([last])[0], self._run([first])[0]
                parts = attended, attended[-1:], attended[: middle - span.start]
                if not all(map(torch.equal, alone, parts)):
                    return "a trial gave other bits alone than in a batch"
        return None

    def _run(self, spans: Sequence[_Span]) -> list[Tensor]:
        device = self._tables.device
        lengths = [span.end - span.start for span in spans]
        contexts = [span.end for span in spans]
        rows = flash_rows(
            self._tables[[span.sequence for span in spans]],
            torch.tensor(contexts, device=device),
            torch.tensor(lengths, device=device),
            (max(lengths), max(contexts)),
        )
        query = torch.cat([self._queries[span.sequence][span.start : span.end] for span in spans])
        out = torch.full_like(query, torch.nan)
        self._flash.attend(query, self._caches, rows, self._scoring, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return list(torch.split(out, lengths))

    def _plainly(self, span: _Span) -> Tensor:
        """The same in float32 and plain torch."""
        query = self._queries[span.sequence][span.start : span.end].float()
        keys, values = (
            cache[self._tables[span.sequence]].flatten(0, 1)[: span.end].float()
            for cache in self._caches
        )
        group = query.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(group, 1))
        scores = scores * self._scoring.scale
        if self._scoring.soft_cap is not None:
            scores = self._scoring.soft_cap * torch.tanh(scores / self._scoring.soft_cap)
        at = torch.arange(span.start, span.end, device=query.device)[:, None]
        seen = torch.arange(span.end, device=query.device)
        hidden = seen > at
        if self._scoring.window is not None:
            hidden = hidden | (seen <= at - self._scoring.window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1))
