"""Computes steps: the model's weights, its KV cache, and one forward pass and sampling a step.

Owns the tensors of one replica. Keeps nothing about sequences from one step to the next: a plan
says everything, so preempted, resumed and chunked sequences need no special case.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import SamplingParams
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampling import sample
from chairlift.kernels.torch_attention import plan_attention
from chairlift.workers.llama import Llama, LlamaInput
from chairlift.workers.sequence import Sequence, SequenceKey, Slice, StepPlan, StepResult
from chairlift.workers.step_arrays import model_arrays, sampling_arrays

__all__ = ["ModelRunner"]

# Sequences × tokens of each: one prompt, a step of many, a step of one.
_WARM_UP = ((1, 64), (8, 1), (1, 1))


class ModelRunner:
    """Implements ``workers.sequence.Runner`` on the CPU, in float32."""

    def __init__(
        self, spec: ModelSpec, weights: dict[str, Tensor], *, num_blocks: int, block_size: int
    ) -> None:
        """Take over the weights and allocate the cache.

        Args:
            spec: the model.
            weights: by canonical name; empty afterwards.
            num_blocks: blocks of the KV cache.
            block_size: positions of one block.
        """
        self._spec = spec
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._model = Llama(spec, weights)
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        # Zeros, not whatever the memory held: padding is read, and only then masked.
        self._caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(spec.num_layers)]

    def advance(self, plan: StepPlan) -> StepResult:
        """Compute a step; see ``workers.sequence.Runner``."""
        if not plan.slices:
            return StepResult(())
        with torch.inference_mode():
            return StepResult(_sample(plan, self.logits(plan)))

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """The forward pass of a step with at least one slice.

        Returns:
            (sampling slices, vocabulary), in the order of the plan.
        """
        arrays = model_arrays(plan, self._block_size)
        batch = LlamaInput(
            tokens=torch.from_numpy(arrays.tokens),
            positions=torch.from_numpy(arrays.positions),
            slots=torch.from_numpy(arrays.slots),
            attention=plan_attention(
                torch.from_numpy(arrays.block_tables),
                torch.from_numpy(arrays.context_lens),
                torch.from_numpy(arrays.query_lens),
                self._caches[0][0],
            ),
        )
        hidden = self._model.forward(batch, self._caches)
        return self._model.logits(hidden[torch.from_numpy(arrays.sampled_rows)])

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
            blocks=list(range(index, index + blocks)),
        )


def _sample(plan: StepPlan, logits: Tensor) -> list[int]:
    arrays = sampling_arrays(plan)
    numbers = uniform(arrays.seed, arrays.choice, arrays.position)
    tokens: list[int] = sample(
        logits,
        torch.from_numpy(arrays.temperature),
        torch.from_numpy(arrays.top_k),
        torch.from_numpy(arrays.top_p),
        torch.from_numpy(arrays.min_p),
        uniform=torch.from_numpy(numbers),
    ).tolist()
    return tokens
