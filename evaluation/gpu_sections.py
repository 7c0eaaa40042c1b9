"""The sections of the report on a GPU: what each measures, in which order, for how long.

Owns the sizes of everything, and the rule that a section that fails or comes too late takes no
other with it. Correctness comes first, then the larger model, then what remains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from chairlift.cluster.errors import StartupError
from chairlift.evaluation.gpu_attention import measure_attention
from chairlift.evaluation.gpu_checks import check_exactness, check_kernels
from chairlift.evaluation.gpu_clock import Clock, Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_machine import ROOT, Ceilings, measure_ceilings
from chairlift.evaluation.gpu_models import (
    SHAPES,
    SMALL_SHAPES,
    RandomModel,
    Spans,
    Variant,
    make_model,
)
from chairlift.evaluation.gpu_peer import Requests, beside_peer
from chairlift.evaluation.gpu_steps import Steps, release

__all__ = ["FULL", "SMALL", "Run", "Scale"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is.

    Attributes:
        shapes: of the models, by name.
        decoding: sequences and the context of each.
        chunks: of a prompt: where it starts, and its tokens.
        attention: steps of attention alone.
        requests: of the load beside the peer.
        peer_settings: of its ``ContinuousBatchingConfig``.
        copied_bytes: for the memory's ceiling.
        rows: of the products for the other ceiling.
        tests: pytest's arguments.
    """

    shapes: Mapping[str, Mapping[str, object]]
    decoding: Sequence[tuple[int, int]]
    chunks: Sequence[tuple[int, int]]
    attention: Sequence[Spans]
    requests: Requests
    copied_bytes: int
    rows: int
    tests: Sequence[str]
    peer_settings: Mapping[str, Any] = field(default_factory=dict)


FULL = Scale(
    shapes=SHAPES,
    decoding=((1, 512), (8, 512), (32, 512), (128, 512), (256, 512), (8, 8192)),
    chunks=((0, 2048), (6144, 2048)),
    attention=(
        ((8192, 1),),
        ((8192, 1),) * 32,
        ((512, 1),) * 128,
        ((2048, 2048),),
        ((8192, 2048),),
    ),
    requests=Requests(count=128, prompt=(32, 512), output=128),
    copied_bytes=4 << 30,
    rows=4096,
    tests=("-m", "gpu", "tests/unit/kernels", "tests/unit/workers"),
)
SMALL = Scale(
    shapes=SMALL_SHAPES,
    decoding=((1, 32), (4, 32), (2, 64)),
    chunks=((0, 32), (32, 32)),
    attention=(((64, 1),) * 2, ((32, 32),)),
    requests=Requests(count=4, prompt=(4, 16), output=6),
    copied_bytes=1 << 24,
    rows=64,
    tests=("-m", "not gpu and not slow", "tests/unit/kernels/test_rope.py"),
    # Left alone, it takes most of a machine's memory and clears it.
    peer_settings={"page_size": 16, "num_blocks": 64, "max_batch_tokens": 128},
)

_KERNELS_SHARE, _EXACT_SHARE = 0.20, 0.07
_STEPS_SHARE, _PEER_SHARE, _ATTENTION_SHARE = 0.20, 0.15, 0.06
"""Of the whole time, at most; what cannot be broken off may take more."""


@dataclass(frozen=True, slots=True)
class Run:
    """One report in the making."""

    device: torch.device
    scale: Scale
    deadline: Deadline
    budget_s: float
    say: Callable[[str], None]
    on_triton: bool

    def sections(self) -> Iterator[Section]:
        """One after the other, as they are measured."""
        ceilings, section = self._ceilings()
        yield section
        yield from self._guarded("kernel checks", _KERNELS_SHARE, self._kernels)
        yield from self._guarded("exactness", _EXACT_SHARE, self._exactness)
        for name, config in self.scale.shapes.items():
            yield from self._model_sections(name, config, ceilings)

    def _model_sections(
        self, name: str, config: Mapping[str, object], ceilings: Ceilings
    ) -> Iterator[Section]:
        release(self.device)
        try:
            model = make_model(name, config, self.device)
        except StartupError as error:
            yield Section(name, notes=[f"left out: {error}"])
            return
        for part, share, measure in (
            ("steps", _STEPS_SHARE, partial(self._steps, model, ceilings)),
            ("peer", _PEER_SHARE, partial(self._peer, model)),
            ("attention", _ATTENTION_SHARE, partial(self._attention, model, ceilings)),
        ):
            yield from self._guarded(f"{part} {name}", share, measure)

    def _guarded(
        self, name: str, share: float, measure: Callable[[Deadline], Sequence[Section]]
    ) -> Iterator[Section]:
        """What was found, or why nothing was: one section that fails takes no other with it."""
        if self.deadline.left < share * self.budget_s / 2:  # else it would end too late
            yield Section(name, notes=["left out, the time was up"])
            return
        self.say(f"{name} ({self.deadline.left:.0f} s left)")
        start = time.perf_counter()
        try:
            sections = measure(self.deadline.within(share * self.budget_s))
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            sections = (Section(name, fault=f"{type(error).__name__}: {said}"),)
        release(self.device)
        for section in sections:
            section.seconds = time.perf_counter() - start
            yield section

    @property
    def _clock(self) -> Clock:
        return Clock(self.device)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def _variants(self) -> Sequence[Variant]:
        """The first is how a service computes by default."""
        kinds = (True, False) if self.on_triton else (False,)
        return [Variant(exact, graphs) for graphs in kinds for exact in (True, False)]

    def _ceilings(self) -> tuple[Ceilings, Section]:
        self.say("ceilings")
        start = time.perf_counter()
        config = next(iter(self.scale.shapes.values()))
        hidden, inner = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
        shapes = [
            (self.scale.rows, hidden, hidden),
            (self.scale.rows, hidden, 2 * inner),
            (self.scale.rows, inner, hidden),
        ]
        ceilings, section = measure_ceilings(
            self._clock, self._dtype, shapes, self.scale.copied_bytes, self.deadline
        )
        section.seconds = time.perf_counter() - start
        return ceilings, section

    def _kernels(self, deadline: Deadline) -> Sequence[Section]:
        return (check_kernels(ROOT, self.scale.tests, deadline),)

    def _exactness(self, deadline: Deadline) -> Sequence[Section]:
        *_, (name, config) = self.scale.shapes.items()
        model = make_model(name, config, self.device)
        exact = [variant for variant in self._variants if variant.exact]
        return (check_exactness(model, exact, deadline),)

    def _steps(
        self, model: RandomModel, ceilings: Ceilings, deadline: Deadline
    ) -> Sequence[Section]:
        steps = Steps(model, ceilings, self._clock, self.scale.decoding, self.scale.chunks)
        found = steps.measure(self._variants, deadline)
        if not self.on_triton:
            found[0].notes.append("CUDA graphs: left out, there are none for kernels of a CPU")
        return found

    def _peer(self, model: RandomModel, deadline: Deadline) -> Sequence[Section]:
        variants = self._variants[:2]
        settings = self.scale.peer_settings
        return (beside_peer(model, variants, self.scale.requests, deadline, settings),)

    def _attention(
        self, model: RandomModel, ceilings: Ceilings, deadline: Deadline
    ) -> Sequence[Section]:
        measure = self._clock, ceilings
        kernels = {name: partial(model.rehearse_attention, each) for name, each in self._attends}
        return (measure_attention(model, kernels, self.scale.attention, measure, deadline),)

    @property
    def _attends(self) -> Sequence[tuple[str, Variant]]:
        """Kinds of attention kernels."""
        if not self.on_triton:
            return [("C++", Variant(True, False)), ("torch", Variant(False, False))]
        return [
            ("Triton", Variant(True, False, "triton")),
            ("FlashAttention, exact", Variant(True, False, "flash")),
            ("FlashAttention, free", Variant(False, False, "flash")),
        ]
