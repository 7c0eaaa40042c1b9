"""Computes steps on a CPU: a model's weights, its KV cache, one forward pass and sampling a step.

Owns the tensors of one replica; ``device_runner`` does the same on a GPU. Keeps nothing about
sequences from one step to the next: a plan says everything, so preempted, resumed
and chunked sequences need no special case.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import AttentionRows, Kernels
from chairlift.kernels.quantised import Matrix
from chairlift.kernels.sampler import DeviceSampler
from chairlift.workers.decoder import Decoder
from chairlift.workers.decoder_weights import DecoderWeights, pack_weights
from chairlift.workers.grammar_masks import Masks, NoMasks
from chairlift.workers.kernel_choice import CpuKernelChoice, choose_kernels
from chairlift.workers.rehearsal import decoding_plan, warm_up_plans
from chairlift.workers.sampler import sample_step, score_prompts
from chairlift.workers.sequence import StepPlan, StepResult
from chairlift.workers.step_arrays import model_arrays, sampling_array
from chairlift.workers.tensor_parallel import Alone, Group

__all__ = ["ModelRunner", "cache_type"]


def cache_type(kernels: Kernels, weights: DecoderWeights) -> torch.dtype:
    """What K and V are kept as: numbers of half the size where inputs are rounded anyway.

    That changes what the model finds likely by far less than the rounding does (see
    ``kernels/README.md``), and attention reads half as much.
    """
    half = weights.quantised and torch.float16 in kernels.cache_types
    return torch.float16 if half else kernels.dtype


class ModelRunner:
    """Implements ``workers.sequence.Runner`` on the CPU.

    Attributes:
        exact: logits are the same bits whatever shares the batch; see ``kernels.interface``.
        masks: which tokens sequences with a grammar may have.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Matrix] | DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        kernels: CpuKernelChoice | Kernels = "auto",
        group: Group | None = None,
    ) -> None:
        """Take over the weights and allocate the cache.

        Args:
            spec: the model.
            weights: as these kernels have packed them, or by canonical name; those are taken out.
            num_blocks: blocks of the KV cache.
            block_size: positions of one block.
            kernels: what to compute with, or which to get ready for it.
                Those use as many CPU threads as torch.
            group: the ranks that compute the model together, if there are several.

        Raises:
            StartupError: the kernels cannot be had.
        """
        self._spec = spec
        self._num_blocks = num_blocks
        self._block_size = block_size
        if isinstance(kernels, str):
            kernels = choose_kernels(kernels, torch.get_num_threads())
        if isinstance(kernels.sampler, DeviceSampler):
            raise TypeError("these kernels are for a DeviceRunner")
        self._sampler = kernels.sampler
        self.exact = kernels.exact
        self.masks: Masks = NoMasks()
        group = group or Alone()
        if isinstance(weights, dict):
            weights = pack_weights(spec, weights, kernels, rank=group.rank)
        dtype = cache_type(kernels, weights)
        max_positions = min(spec.context_length, num_blocks * block_size)
        self._model = Decoder(spec, weights, kernels, group, max_positions=max_positions)
        self._caches = self._model.new_caches(num_blocks, block_size, dtype)

    def advance(self, plan: StepPlan) -> StepResult:
        """Compute a step; see ``workers.sequence.Runner``."""
        if not plan.slices:
            return StepResult(())
        masks = self.masks.begin(plan)
        with torch.inference_mode():
            hidden, sampled_rows = self._forward(plan)

            def logits_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                numbers: NDArray[np.float32] = self._logits(hidden, rows).numpy()
                return numbers

            sampler, ends = self._sampler, self._spec.eos_token_ids
            sampled = sample_step(plan, logits_of(sampled_rows), ends, sampler, masks())
            scores = score_prompts(plan, logits_of, sampler)
            return StepResult(sampled.tokens, sampled.logprobs, scores)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The forward pass of a step with at least one slice.

        Returns:
            (sampling slices, vocabulary), in the order of the plan.
        """
        return self._logits(*self._forward(plan))

    def _logits(self, hidden: Tensor, rows: NDArray[np.int64]) -> Tensor:
        if len(rows) < len(hidden):
            hidden = hidden.index_select(0, torch.from_numpy(rows))
        return self._model.logits(hidden)

    def rehearse(self, sequences: int, context: int) -> Callable[[], None]:
        """The kernels of a step in which sequences of this length decode, and nothing else.

        Each call computes it once more. It is there to be timed, and spoils the cache.

        Raises:
            ValueError: the cache does not hold so many.
        """
        plan = decoding_plan(sequences, context, self._num_blocks, self._block_size)
        tokens, rows, sampled_rows = self._inputs(plan)
        choosing = sampling_array(piece.sequence for piece in plan.slices)

        @torch.inference_mode()
        def compute() -> None:
            hidden = self._model.forward(tokens, rows, self._caches)
            self._sampler.sample(self._logits(hidden, sampled_rows).numpy(), choosing)

        return compute

    def _forward(self, plan: StepPlan) -> tuple[Tensor, NDArray[np.int64]]:
        """Hidden states of every row, and the rows to sample from."""
        tokens, rows, sampled_rows = self._inputs(plan)
        return self._model.forward(tokens, rows, self._caches), sampled_rows

    def _inputs(self, plan: StepPlan) -> tuple[Tensor, AttentionRows, NDArray[np.int64]]:
        """Tokens of every row, where they stand, and the rows to sample from."""
        arrays = model_arrays(plan, self._block_size)
        rows = AttentionRows(
            positions=torch.from_numpy(arrays.positions),
            slots=torch.from_numpy(arrays.slots),
            block_tables=torch.from_numpy(arrays.block_tables),
            context_lens=torch.from_numpy(arrays.context_lens),
            query_lens=torch.from_numpy(arrays.query_lens),
            block_size=self._block_size,
            most_rows=int(arrays.query_lens.max()),
            most_context=int(arrays.context_lens.max()),
        )
        return torch.from_numpy(arrays.tokens), rows, arrays.sampled_rows

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Run the production path before the first request needs it.

        Writes to the first blocks, so it must come before any request.

        Args:
            progress: told the done share, up to 1.
        """
        plans = warm_up_plans(self._num_blocks, self._block_size, self._spec.context_length)
        for done, plan in enumerate(plans, start=1):
            self.advance(plan)
            progress(done / len(plans))
