"""Tokens of logits that lie on a device, as each sequence asks for them.

Owns the way there and back for the few rows that ask for more than their token. What penalties,
biases and masks make of logits is numpy's (``kernels.logits``): such a row is fetched, changed, put
back, and sampled once more, which takes far longer than the rest of the step waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.kernels.logits import Adjustment, adjust
from chairlift.kernels.sampler import DeviceSampler
from chairlift.workers.sampler import Sampled, adjustments, score_tokens, without_choice
from chairlift.workers.sequence import StepPlan

__all__ = ["Launch", "sampled"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A step that is under way: one row for each slice that samples.

    Attributes:
        hidden: states of all rows of the step; None where nobody can ask for more logits.
        logits: (rows, vocabulary), until the next launch.
        choosing: as ``DeviceSampler`` takes it.
        tokens: (rows,) as the logits alone say; on the device, until the next launch but one.
        fetch: waits, and brings them.
    """

    hidden: Tensor | None
    logits: Tensor
    choosing: Tensor
    tokens: Tensor
    fetch: Callable[[], list[int]]


def sampled(
    plan: StepPlan,
    launch: Launch,
    eos_token_ids: Iterable[int],
    sampler: DeviceSampler,
    masks: Mapping[int, bytes],
) -> Sampled:
    """Wait for the next token of every slice that samples.

    Args:
        plan: the step.
        launch: the same; its logits are changed where sequences ask for that.
        eos_token_ids: the model's own end tokens.
        sampler: of the kernels that compute.
        masks: of sequences with a grammar, by index; see ``grammar_masks``.
    """
    sequences = [piece.sequence for piece in plan.slices if piece.samples]
    asked = adjustments(sequences, eos_token_ids, masks)
    tokens = launch.fetch()
    if asked:
        for index, token in zip(asked, _sample_again(launch, asked, sampler), strict=True):
            tokens[index] = token
    scores = score_tokens(sequences, tokens, launch.logits, sampler)
    return Sampled(tuple(without_choice(tokens, masks)), scores)


def _sample_again(
    launch: Launch, asked: dict[int, Adjustment], sampler: DeviceSampler
) -> list[int]:
    rows = torch.tensor(list(asked), device=launch.logits.device)
    numbers = launch.logits.index_select(0, rows).cpu()
    for row, adjustment in zip(numbers.numpy(), asked.values(), strict=True):
        adjust(row, adjustment)
    adjusted = numbers.to(launch.logits.device)
    launch.logits.index_copy_(0, rows, adjusted)  # log probabilities are of these
    again = torch.empty_like(rows)
    sampler.sample_into(adjusted, launch.choosing.index_select(0, rows), out=again)
    tokens: list[int] = again.tolist()
    return tokens
