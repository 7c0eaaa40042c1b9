"""From the logits of a step to what it brings: tokens, and how likely they were.

Owns the way from ``SamplingParams`` to the kernels that know only rows. Plain numpy, no torch.
Keeps nothing from step to step: what a penalty needs to know of a sequence is counted anew from
its tokens, for far less than attention takes to look at each of them. A sequence that asks for
nothing costs nothing beyond its token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.kernels.logits import Adjustment, adjust
from chairlift.kernels.sampler import Likely, Sampler, Wanted
from chairlift.workers.sequence import NO_TOKEN, Sequence, StepPlan
from chairlift.workers.step_arrays import sampling_array

__all__ = [
    "Sampled",
    "Scorer",
    "adjustments",
    "is_plain",
    "sample_step",
    "score_prompts",
    "score_tokens",
    "without_choice",
]

Ints = NDArray[np.int64]
Logits = NDArray[np.float32]
AnyLogits = TypeVar("AnyLogits")
_Scored = TypeVar("_Scored", contravariant=True)

_NO_MASKS: Mapping[int, bytes] = MappingProxyType({})

_SCORED_AT_ONCE = 32
"""Rows; their logits are all the memory that scoring a prompt of any length takes."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each slice that samples; ``logprobs`` by index into them."""

    tokens: tuple[int, ...]
    logprobs: dict[int, TokenLogprobs]


class Scorer(Protocol[_Scored]):
    """The half of a sampler that says how likely tokens are, of logits of some kind."""

    def log_probabilities(self, logits: _Scored, wanted: list[Wanted], /) -> Iterable[Likely]: ...


def sample_step(
    plan: StepPlan,
    logits: Logits,
    eos_token_ids: Iterable[int],
    sampler: Sampler,
    masks: Mapping[int, bytes] = _NO_MASKS,
) -> Sampled:
    """Choose the next token of every slice that samples.

    Args:
        plan: the step.
        logits: (sampling slices, vocabulary); changed in place.
        eos_token_ids: the model's own end tokens.
        sampler: that of the kernels which made the logits.
        masks: of sequences with a grammar, by index; see ``grammar_masks``.
    """
    sequences = [piece.sequence for piece in plan.slices if piece.samples]
    for index, adjustment in adjustments(sequences, eos_token_ids, masks).items():
        adjust(logits[index], adjustment)
    tokens = sampler.sample(logits, sampling_array(sequences))
    scores = score_tokens(sequences, tokens, logits, sampler)
    return Sampled(tuple(without_choice(tokens, masks)), scores)


def adjustments(
    sequences: Iterable[Sequence],
    eos_token_ids: Iterable[int],
    masks: Mapping[int, bytes] = _NO_MASKS,
) -> dict[int, Adjustment]:
    """What the sequences' next logits are to suffer, by index; of most it is nothing."""
    found = (
        (index, _adjustment(sequence, eos_token_ids, masks.get(index, b"")))
        for index, sequence in enumerate(sequences)
    )
    return {index: adjustment for index, adjustment in found if adjustment is not None}


def is_plain(sequence: Sequence) -> bool:
    """Whether its next token is all that is asked, and chosen from its logits as they are."""
    asked = sequence.sampling
    return asked.logprobs is None and not asked.grammar and _adjustment(sequence, (), b"") is None


def without_choice(tokens: Seq[int], masks: Mapping[int, bytes]) -> Seq[int]:
    """The tokens, but ``NO_TOKEN`` of those whose mask leaves none."""
    if all(masks.values()):
        return tokens
    return [NO_TOKEN if masks.get(index) == b"" else each for index, each in enumerate(tokens)]


def score_tokens(
    sequences: Iterable[Sequence],
    tokens: Seq[int],
    logits: AnyLogits,
    sampler: Scorer[AnyLogits],
) -> dict[int, TokenLogprobs]:
    """How likely the sampled tokens were, by index, of sequences that ask."""
    wanted = [
        (index, tokens[index], count)
        for index, sequence in enumerate(sequences)
        if (count := sequence.sampling.logprobs) is not None
    ]
    likely = sampler.log_probabilities(logits, wanted) if wanted else ()
    return {index: TokenLogprobs(*each) for (index, _, _), each in zip(wanted, likely, strict=True)}


def score_prompts(
    plan: StepPlan, logits_of: Callable[[Ints], AnyLogits], sampler: Scorer[AnyLogits]
) -> dict[int, tuple[TokenLogprobs, ...]]:
    """How likely the prompt tokens were, of sequences that ask and have no output yet.

    A row predicts the token after it, so the slice of tokens ``start … end - 1`` brings those of
    ``start + 1 … end``.

    Args:
        plan: the step.
        logits_of: rows of the step → their logits, (rows, vocabulary); called for few at a time.
        sampler: as ``sample_step`` takes it.

    Returns:
        By index into the plan's slices.
    """
    scored = {}
    first_row = 0
    for index, piece in enumerate(plan.slices):
        sequence = piece.sequence
        count = sequence.sampling.prompt_logprobs
        if count is not None and not sequence.num_output:
            after = piece.start + 1
            following = sequence.tokens[after : after + piece.count]
            scored[index] = tuple(_score(following, first_row, count, logits_of, sampler))
        first_row += piece.count
    return scored


def _score(
    following: list[int],
    first_row: int,
    count: int,
    logits_of: Callable[[Ints], AnyLogits],
    sampler: Scorer[AnyLogits],
) -> Iterator[TokenLogprobs]:
    for done in range(0, len(following), _SCORED_AT_ONCE):
        tokens = following[done : done + _SCORED_AT_ONCE]
        rows = np.arange(first_row + done, first_row + done + len(tokens))
        wanted = [(row, token, count) for row, token in enumerate(tokens)]
        for likely in sampler.log_probabilities(logits_of(rows), wanted):
            yield TokenLogprobs(*likely)


def _adjustment(sequence: Sequence, eos_token_ids: Iterable[int], mask: bytes) -> Adjustment | None:
    """What the sequence's next logits are to suffer; None for nothing."""
    asked = sequence.sampling
    too_short = sequence.num_output < asked.min_tokens
    repetition = asked.repetition_penalty != 1.0
    counted = bool(asked.presence_penalty or asked.frequency_penalty)
    named = asked.logit_bias or asked.allowed_token_ids or mask
    if not (too_short or repetition or counted or named):
        return None
    ends = () if asked.ignore_eos else eos_token_ids
    prompt, tokens = sequence.num_prompt, sequence.tokens
    return Adjustment(
        biased=_ints(token for token, _ in asked.logit_bias),
        bias=np.array([bias for _, bias in asked.logit_bias], np.float32),
        prompt=_ints(islice(tokens, prompt if repetition else 0)),
        output=_ints(islice(tokens, prompt, None) if repetition or counted else ()),
        repetition=asked.repetition_penalty,
        frequency=asked.frequency_penalty,
        presence=asked.presence_penalty,
        allowed=_ints(asked.allowed_token_ids),
        mask=np.frombuffer(mask, np.uint8),
        forbidden=_ints((*asked.stop_token_ids, *ends) if too_short else ()),
    )


def _ints(tokens: Iterable[int]) -> Ints:
    return np.fromiter(tokens, np.int64)
