"""Computes steps on a device that works while the host goes on.

Owns the tensors of one replica, as ``model_runner`` does on a CPU, and when what is queued. The
host waits for one thing in a step, its tokens; before it does, the next step is queued as far as
it can be guessed (``look_ahead``), and a step in which everybody decodes is a single call
(``step_graphs``). Between steps it keeps no more of sequences than that guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import AttentionRows, Kernels
from chairlift.kernels.sampler import CHOOSING_WORDS, Choosing, DeviceSampler, HostSampler
from chairlift.workers.decoder import Decoder
from chairlift.workers.decoder_weights import DecoderWeights
from chairlift.workers.device_queue import queue_for
from chairlift.workers.device_sampling import Launch, sampled
from chairlift.workers.grammar_masks import Masks, NoMasks
from chairlift.workers.look_ahead import Guess, LookAhead
from chairlift.workers.rehearsal import decoding_plan, warm_up_plans
from chairlift.workers.sampler import is_plain, score_prompts
from chairlift.workers.sequence import StepPlan, StepResult
from chairlift.workers.step_arrays import ModelArrays, model_arrays, sampling_array
from chairlift.workers.step_graphs import GraphShape, Outputs, StepGraphs
from chairlift.workers.tensor_parallel import Alone, Group

__all__ = ["DeviceCache", "DeviceRunner"]

Ints = NDArray[np.int64]

_SPARE_SHARE = 4
"""Times as many as cross the end of a block in a step, on average."""


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """A KV cache and how it is used.

    Attributes:
        num_blocks: that the engine has.
        block_size: positions of one block.
        dtype: one of the kernels' ``cache_types``.
        graph_sequences: steps of up to so many sequences that decode become graphs; 0: none.
    """

    num_blocks: int
    block_size: int
    dtype: torch.dtype
    graph_sequences: int = 256

    @property
    def num_spare(self) -> int:
        """Blocks for rows of the next step whose sequences have none yet."""
        return _SPARE_SHARE * -(-max(self.graph_sequences, self.block_size) // self.block_size)

    @property
    def num_extra(self) -> int:
        """Blocks that the cache has besides the engine's."""
        return self.num_spare + -(-self.graph_sequences // self.block_size)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The step that is computed before it is asked for.

    Attributes:
        guesses: its rows.
        launch: the step.
        tokens: that the step before sampled.
    """

    guesses: tuple[Guess, ...]
    launch: Launch
    tokens: list[int]


class DeviceRunner:
    """Implements ``workers.sequence.Runner`` wherever the kernels compute.

    Attributes:
        exact: logits are the same bits whatever shares the batch; see ``kernels.interface``.
        masks: which tokens sequences with a grammar may have.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        cache: DeviceCache,
        kernels: Kernels,
        group: Group | None = None,
    ) -> None:
        """Take over the weights and allocate the cache; the graphs come with the warm-up."""
        self.exact = kernels.exact
        self.masks: Masks = NoMasks()
        self._spec = spec
        self._cache = cache
        self._device = kernels.device
        sampler = kernels.sampler
        self._sampler = sampler if isinstance(sampler, DeviceSampler) else HostSampler(sampler)
        self._queue = queue_for(kernels.device)
        max_positions = min(spec.context_length, cache.num_blocks * cache.block_size)
        with self._queue.active():
            self._model = Decoder(
                spec, weights, kernels, group or Alone(), max_positions=max_positions
            )
            self._caches = self._model.new_caches(
                cache.num_blocks + cache.num_extra, cache.block_size, cache.dtype
            )
        self._look = LookAhead(cache.num_blocks, cache.num_spare, cache.block_size, is_plain)
        shape = GraphShape(
            most=cache.graph_sequences,
            vocabulary=spec.vocab_size,
            block_size=cache.block_size,
            table_width=-(-max_positions // cache.block_size),
            fill_block=cache.num_blocks + cache.num_spare,
        )
        self._graphs = StepGraphs(self._decode, self._queue, shape)
        self._ahead: _Ahead | None = None

    @torch.inference_mode()
    def advance(self, plan: StepPlan) -> StepResult:
        """Compute a step; see ``workers.sequence.Runner``."""
        if not plan.slices:
            return StepResult(())
        with self._queue.active():
            ahead, self._ahead = self._ahead, None
            if ahead is None:
                return self._unforeseen(plan)
            rows = self._look.confirm(ahead.guesses, ahead.tokens, plan)
            if max(rows) < 0:
                return self._unforeseen(plan)
            if min(rows) < 0:
                return self._half_foreseen(plan, ahead.launch, rows)
            return self._foreseen(plan, ahead.launch, rows)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The forward pass of a step with at least one slice that samples.

        Returns:
            (sampling slices, vocabulary), in the order of the plan.
        """
        self._ahead = None
        with self._queue.active():
            return self._launch(plan).logits.clone()

    def rehearse(self, sequences: int, context: int) -> Callable[[], None]:
        """A step in which sequences of this length decode, until its tokens are there.

        Each call computes it once more. It is there to be timed, and spoils the cache.

        Raises:
            ValueError: the cache does not hold so many.
        """
        plan = decoding_plan(sequences, context, self._cache.num_blocks, self._cache.block_size)

        @torch.inference_mode()
        def compute() -> None:
            with self._queue.active():
                self._launch(plan).fetch()

        return compute

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Run the production path before the first request needs it, and capture the graphs.

        Writes to the first blocks, so it must come before any request.

        Args:
            progress: told the done share, up to 1.
        """
        cache, half = self._cache, 0.5
        plans = warm_up_plans(cache.num_blocks, cache.block_size, self._spec.context_length)
        for done, plan in enumerate(plans, start=1):
            self.advance(plan)
            progress(half * done / len(plans))
        with torch.inference_mode(), self._queue.active():
            self._graphs.capture(self._device, lambda share: progress(half + half * share))
        progress(1.0)

    def _foreseen(self, plan: StepPlan, launch: Launch, rows: list[int]) -> StepResult:
        """A step that is under way; ``rows`` of it are the plan's slices."""
        guesses = self._look.guess(plan, rows)
        following = self._follow(guesses, launch)
        fetched = launch.fetch()
        if following is not None:
            self._ahead = _Ahead(guesses, following, fetched)
        return StepResult([fetched[row] for row in rows])

    def _unforeseen(self, plan: StepPlan) -> StepResult:
        """A step of which nothing is under way."""
        masks = self.masks.begin(plan)
        launch = self._launch(plan)
        guesses = self._look.guess(plan, range(len(plan.slices)))
        following = self._follow(guesses, launch)
        result = self._completed(plan, launch, masks())
        if following is not None:
            self._ahead = _Ahead(guesses, following, list(result.tokens))
        return result

    def _half_foreseen(self, plan: StepPlan, launch: Launch, rows: list[int]) -> StepResult:
        """A step of which the slices with a row are under way, and no others.

        Nothing is queued ahead of the next one: who has just come is seldom the last to come.
        """
        new = [index for index, row in enumerate(rows) if row < 0]
        rest = StepPlan(tuple(plan.slices[index] for index in new))
        masks = self.masks.begin(rest)
        started = self._launch(rest)
        fetched = launch.fetch()
        result = self._completed(rest, started, masks())
        others = iter(result.tokens)
        tokens = [
            fetched[row] if row >= 0 else next(others)
            for row, piece in zip(rows, plan.slices, strict=True)
            if piece.samples
        ]
        sampling = [row for row, piece in zip(rows, plan.slices, strict=True) if piece.samples]
        place = [index for index, row in enumerate(sampling) if row < 0]
        return StepResult(
            tokens,
            {place[index]: value for index, value in result.logprobs.items()},
            {new[index]: value for index, value in result.prompt_logprobs.items()},
        )

    def _completed(self, plan: StepPlan, launch: Launch, masks: Mapping[int, bytes]) -> StepResult:
        """Wait for all that the plan asks of its step."""

        def logits_of(rows: Ints) -> Tensor:
            assert launch.hidden is not None  # or nobody has more rows than the one that samples
            chosen = torch.from_numpy(rows).to(self._device)
            return self._model.logits(launch.hidden.index_select(0, chosen))

        found = sampled(plan, launch, self._spec.eos_token_ids, self._sampler, masks)
        scores = score_prompts(plan, logits_of, self._sampler)
        return StepResult(found.tokens, found.logprobs, scores)

    def _follow(self, guesses: tuple[Guess, ...], launch: Launch) -> Launch | None:
        """Queue the guessed step behind the one whose tokens it needs."""
        if not guesses:
            return None
        return self._queued(*self._look.arrays(guesses), launch.tokens)

    def _launch(self, plan: StepPlan) -> Launch:
        """Queue a step whose tokens are known."""
        arrays = model_arrays(plan, self._cache.block_size, self._look.places)
        choosing = sampling_array(piece.sequence for piece in plan.slices if piece.samples)
        return self._queued(arrays, choosing, None)

    def _queued(self, arrays: ModelArrays, choosing: Choosing, previous: Tensor | None) -> Launch:
        """Queue a step; with ``previous`` tokens, the arrays' own are indices into these."""
        if arrays.decodes and len(arrays.tokens) <= self._graphs.largest:
            out, choose = self._graphs.run(arrays, choosing, previous)
            return Launch(None, out.logits, choose, out.tokens, self._queue.fetch(out.tokens))
        words = choosing.view(np.int64).reshape(len(choosing), CHOOSING_WORDS)
        tokens, positions, slots, tables, contexts, queries, sampled_rows, choose = (
            self._queue.send(
                [
                    arrays.tokens,
                    arrays.positions,
                    arrays.slots,
                    arrays.block_tables,
                    arrays.context_lens,
                    arrays.query_lens,
                    arrays.sampled_rows,
                    words,
                ]
            )
        )
        rows = AttentionRows(
            positions=positions,
            slots=slots,
            block_tables=tables,
            context_lens=contexts,
            query_lens=queries,
            block_size=self._cache.block_size,
            most_rows=int(arrays.query_lens.max()),
            most_context=int(arrays.context_lens.max()),
        )
        if previous is not None:
            tokens = previous.index_select(0, tokens)
        hidden = self._model.forward(tokens, rows, self._caches)
        if not len(sampled_rows):
            return Launch(hidden, hidden.new_empty(0, 0), choose, tokens[:0], list)
        sampling = hidden if arrays.decodes else hidden.index_select(0, sampled_rows)
        logits = self._model.logits(sampling)
        chosen = sampled_rows.new_empty(len(sampled_rows))
        self._sampler.sample_into(logits, choose, out=chosen)
        return Launch(hidden, logits, choose, chosen, self._queue.fetch(chosen))

    def _decode(self, tokens: Tensor, rows: AttentionRows, choosing: Tensor, out: Outputs) -> None:
        """What a graph captures."""
        self._model.logits(self._model.forward(tokens, rows, self._caches), out=out.logits)
        self._sampler.sample_into(out.logits, choosing, out=out.tokens)
