"""Computes steps: the model's weights, its KV cache, and one forward pass and sampling a step.

Owns the tensors of one replica. Keeps nothing about sequences from one step to the next: a plan
says everything, so preempted, resumed and chunked sequences need no special case.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import SamplingParams
from chairlift.kernels.interface import AttentionRows, Kernels
from chairlift.kernels.quantised import Matrix
from chairlift.workers.kernel_choice import KernelChoice, choose_kernels
from chairlift.workers.llama import Llama
from chairlift.workers.llama_weights import LlamaWeights, pack_weights
from chairlift.workers.sampler import sample_step, score_prompts
from chairlift.workers.sequence import Sequence, SequenceKey, Slice, StepPlan, StepResult
from chairlift.workers.step_arrays import model_arrays, sampling_array

__all__ = ["ModelRunner", "cache_type"]

# Sequences × tokens of each: one prompt, a step of many, a step of one.
_WARM_UP = ((1, 64), (8, 1), (1, 1))


def cache_type(kernels: Kernels, weights: LlamaWeights) -> torch.dtype:
    """What K and V are kept as: numbers of half the size where inputs are rounded anyway.

    That changes what the model finds likely by far less than the rounding does (see
    ``kernels/README.md``), and attention reads half as much.
    """
    half = weights.quantised and torch.float16 in kernels.cache_types
    return torch.float16 if half else torch.float32


class ModelRunner:
    """Implements ``workers.sequence.Runner`` on the CPU.

    Attributes:
        exact: logits are the same bits whatever shares the batch; see ``kernels.interface``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Matrix] | LlamaWeights,
        *,
        num_blocks: int,
        block_size: int,
        kernels: KernelChoice | Kernels = "auto",
        threads: int | None = None,
    ) -> None:
        """Take over the weights and allocate the cache.

        Args:
            spec: the model.
            weights: as these kernels have packed them, or by canonical name; those are taken out.
            num_blocks: blocks of the KV cache.
            block_size: positions of one block.
            kernels: what to compute with, or which to get ready for it.
            threads: CPU threads of those, the calling one included; by default as many as torch
                uses.

        Raises:
            StartupError: the kernels cannot be had.
        """
        self._spec = spec
        self._num_blocks = num_blocks
        self._block_size = block_size
        if isinstance(kernels, str):
            kernels = choose_kernels(kernels, threads or torch.get_num_threads())
        self._kernels = kernels
        self.exact = self._kernels.exact
        if isinstance(weights, dict):
            weights = pack_weights(spec, weights, kernels)
        dtype = cache_type(self._kernels, weights)
        max_positions = min(spec.context_length, num_blocks * block_size)
        self._model = Llama(spec, weights, self._kernels, max_positions=max_positions)
        self._caches = self._model.new_caches(num_blocks, block_size, dtype)

    def advance(self, plan: StepPlan) -> StepResult:
        """Compute a step; see ``workers.sequence.Runner``."""
        if not plan.slices:
            return StepResult(())
        with torch.inference_mode():
            hidden, sampled_rows = self._forward(plan)

            def logits_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                numbers: NDArray[np.float32] = self._logits(hidden, rows).numpy()
                return numbers

            sampler, ends = self._kernels.sampler, self._spec.eos_token_ids
            sampled = sample_step(plan, logits_of(sampled_rows), ends, sampler)
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
        blocks = sequences * -(-context // self._block_size)
        if blocks > self._num_blocks:
            raise ValueError(f"{blocks} blocks are needed, there are {self._num_blocks}")
        decoding = [self._synthetic(index, context) for index in range(sequences)]
        plan = StepPlan(
            tuple(Slice(each, start=context - 1, count=1, samples=True) for each in decoding)
        )
        tokens, rows, sampled_rows = self._inputs(plan)
        choosing = sampling_array(decoding)

        @torch.inference_mode()
        def compute() -> None:
            hidden = self._model.forward(tokens, rows, self._caches)
            self._kernels.sampler.sample(self._logits(hidden, sampled_rows).numpy(), choosing)

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
        )
        return torch.from_numpy(arrays.tokens), rows, arrays.sampled_rows

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Run the production path before the first request needs it.

        Writes to the first blocks, so it must come before any request.

        Args:
            progress: told the done share, up to 1.
        """
        longest = min(self._num_blocks * self._block_size, self._spec.context_length)
        for done, (sequences, length) in enumerate(_WARM_UP, start=1):
            count = min(length, longest)
            self.advance(
                StepPlan(
                    tuple(
                        Slice(self._synthetic(index, count), start=0, count=count, samples=True)
                        for index in range(min(sequences, self._num_blocks))
                    )
                )
            )
            progress(done / len(_WARM_UP))

    def _synthetic(self, index: int, length: int) -> Sequence:
        blocks = -(-length // self._block_size)
        return Sequence(
            key=SequenceKey(-1, index),
            request_id="warm-up",
            tenant="warm-up",
            choice=0,
            sampling=SamplingParams(max_tokens=1, top_p=0.9),
            arrival=index,
            tokens=[0] * length,
            num_prompt=length,
            blocks=list(range(index * blocks, (index + 1) * blocks)),
        )
