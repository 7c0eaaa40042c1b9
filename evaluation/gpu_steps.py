"""How fast a model's steps are beside what the machine allows: decoding, and chunks of prompts.

Owns which steps are measured and what they are compared with. A step of sequences that decode must
read the weights and its sequences' K and V once, so its ceiling is the memory; a chunk of a prompt
multiplies, so its ceiling is the library's matrix products.

Steps that decode are measured twice: one behind the other, each with the tokens of the one before,
as an engine has them; and alone, so that nothing of the next one overlaps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from chairlift.cluster.protocol import SamplingParams
from chairlift.evaluation.gpu_clock import Clock, Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_machine import Ceilings
from chairlift.evaluation.gpu_models import BLOCK_SIZE, RandomModel, Variant
from chairlift.workers.model_loading import AnyRunner
from chairlift.workers.sequence import Sequence as Decoded
from chairlift.workers.sequence import SequenceKey, Slice, StepPlan

__all__ = ["Steps", "release"]


@dataclass(frozen=True, slots=True)
class Steps:
    """What is measured of one model.

    Attributes:
        decoding: sequences and the context of each.
        chunks: of a prompt: where it starts and how long it is.
    """

    model: RandomModel
    ceilings: Ceilings
    clock: Clock
    decoding: Sequence[tuple[int, int]]
    chunks: Sequence[tuple[int, int]]

    def measure(self, variants: Iterable[Variant], deadline: Deadline) -> tuple[Section, Section]:
        """Decoding and prompts, in one way after the other."""
        decode = Section(f"decode {self.model.name}")
        prompt = Section(f"prompt {self.model.name}")
        for variant in variants:
            if deadline.left <= 0:
                decode.notes.append(f"{variant}: left out, the time was up")
                prompt.notes.append(f"{variant}: left out, the time was up")
                continue
            blocks = self.model.blocks_that_fit(self._blocks)
            opened = _Opened(self.model.open_runner(variant, blocks), variant, blocks)
            self._decode(opened, decode, deadline)
            # Graphs are for decoding only.
            if variant.graphs or not any(row["exact"] == variant.exact for row in prompt.rows):
                self._prompt(opened, prompt, deadline)
            del opened
            release(self.clock.device)
        return decode, prompt

    @property
    def _blocks(self) -> int:
        decoding = [count * -(-_room(context) // BLOCK_SIZE) for count, context in self.decoding]
        chunks = [-(-(start + count) // BLOCK_SIZE) for start, count in self.chunks]
        return max(decoding + chunks)

    def _decode(self, opened: _Opened, section: Section, deadline: Deadline) -> None:
        runner, variant = opened.runner, opened.variant
        for sequences, context in self.decoding:
            where = f"{variant}: {sequences} sequences of {context} tokens"
            if deadline.left <= 0:
                section.notes.append(f"{where}: left out, the time was up")
                continue
            if sequences * -(-_room(context) // BLOCK_SIZE) > opened.blocks:
                section.notes.append(f"{where}: left out, the memory is too small")
                continue
            alone = self.clock.time(runner.rehearse(sequences, context), deadline)
            times = self.clock.time(_Loop(runner, sequences, context), deadline)
            least = self.model.step_bytes(sequences, context) / self.ceilings.copy
            section.add(
                {"exact": variant.exact, "graphs": variant.graphs},
                {"sequences": sequences, "context": context},
                times.milliseconds,
                {"alone ms": 1e3 * alone.median, "roofline ms": 1e3 * least},
                {"share of roofline": least / times.median, "tokens/s": sequences / times.median},
            )

    def _prompt(self, opened: _Opened, section: Section, deadline: Deadline) -> None:
        runner, variant = opened.runner, opened.variant
        for start, count in self.chunks:
            where = f"{variant}: tokens {start} to {start + count}"
            if deadline.left <= 0:
                section.notes.append(f"{where}: left out, the time was up")
                continue
            if -(-(start + count) // BLOCK_SIZE) > opened.blocks:
                section.notes.append(f"{where}: left out, the memory is too small")
                continue
            chunk = _chunk(start, count)
            times = self.clock.time(partial(runner.advance, chunk), deadline)
            least = self.model.prompt_operations(start, count) / self.ceilings.products
            section.add(
                {"exact": variant.exact, "from": start, "tokens": count},
                times.milliseconds,
                {"share of matrix rate": least / times.median, "tokens/s": count / times.median},
            )


def release(device: torch.device) -> None:
    """Have memory that nobody refers to given back to the device."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A runner, how it computes, and the blocks that it has."""

    runner: AnyRunner
    variant: Variant
    blocks: int


class _Loop:
    """Sequences that decode for ever, a step a call, as an engine would have them.

    At the end of their room they go back to where they began; what stands in the cache does not
    change how long a step takes.
    """

    def __init__(self, runner: AnyRunner, sequences: int, context: int) -> None:
        self._runner = runner
        self._context = context
        self._sequences = [_sequence(index, context, _room(context)) for index in range(sequences)]

    def __call__(self) -> None:
        if len(self._sequences[0].tokens) == _room(self._context):
            for sequence in self._sequences:
                del sequence.tokens[self._context :]
        at = len(self._sequences[0].tokens) - 1
        plan = StepPlan(tuple(Slice(each, at, 1, samples=True) for each in self._sequences))
        tokens = self._runner.advance(plan).tokens
        for sequence, token in zip(self._sequences, tokens, strict=True):
            sequence.tokens.append(token)


def _room(context: int) -> int:
    """Tokens of a sequence that begins with a context of so many, at most."""
    return context + max(BLOCK_SIZE, context // 8)


def _chunk(start: int, count: int) -> StepPlan:
    """One sequence computes these of its tokens, and samples."""
    length = start + count
    return StepPlan((Slice(_sequence(0, length, length), start, count, samples=True),))


def _sequence(index: int, length: int, room: int) -> Decoded:
    blocks = -(-room // BLOCK_SIZE)
    return Decoded(
        key=SequenceKey(-1, index),
        request_id="rehearsal",
        tenant="rehearsal",
        choice=0,
        sampling=SamplingParams(max_tokens=room, ignore_eos=True),
        arrival=index,
        tokens=[3] * length,
        num_prompt=length,
        blocks=list(range(index * blocks, (index + 1) * blocks)),
    )
