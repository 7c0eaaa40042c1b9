"""From a body's fields on sampling to ``SamplingParams``.

Owns what those fields mean, and the checks that need the vocabulary. A value that changes nothing
becomes the field's default, so that whoever computes can tell at a glance what is off.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.protocol import SamplingParams
from chairlift.deployments.openai_schema import ChatBody, CompletionBody, GenerationBody

__all__ = ["check_token_ids", "read_sampling", "read_seeds"]

SMALLEST = 1e-6
"""A lower temperature is greedy; a lower ``top_p`` is this one, which keeps the likeliest token
only; a lower ``repetition_penalty`` is this one too. Smaller values would not make it through
float32."""

SEED_BITS = 53
"""Of a seed that is drawn: every JSON reader keeps it, those that know only floats included."""


def read_sampling(body: GenerationBody, vocab_size: int) -> SamplingParams:
    """What is the same for all prompts of a body: all but seed and ``max_tokens``.

    Raises InvalidRequest for what is no token id.
    """
    check_token_ids(body.stop_token_ids, "stop_token_ids", vocab_size)
    allowed = body.allowed_token_ids or []
    if len(allowed) > vocab_size:
        raise InvalidRequest(
            f"allowed_token_ids: has {len(allowed)} entries, but there are {vocab_size} tokens",
            param="allowed_token_ids",
        )
    check_token_ids(allowed, "allowed_token_ids", vocab_size)
    logprobs = _num_logprobs(body)
    return SamplingParams(
        max_tokens=1,
        temperature=body.temperature if body.temperature >= SMALLEST else 0.0,
        top_p=max(body.top_p, SMALLEST),
        top_k=body.top_k if 0 < body.top_k < vocab_size else 0,
        min_p=body.min_p,
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids)),
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        presence_penalty=_without_sign_of_zero(body.presence_penalty),
        frequency_penalty=_without_sign_of_zero(body.frequency_penalty),
        repetition_penalty=max(body.repetition_penalty, SMALLEST),
        logit_bias=_biases(body.logit_bias, vocab_size),
        allowed_token_ids=tuple(sorted(set(allowed))),
        logprobs=logprobs,
        prompt_logprobs=logprobs if isinstance(body, CompletionBody) and body.echo else None,
    )


def read_seeds(body: GenerationBody, prompts: int) -> list[int]:
    """The seed of each prompt: the body's for all, else one of its own for each."""
    if body.seed is not None:
        return [body.seed % 2**64] * prompts
    return [secrets.randbits(SEED_BITS) for _ in range(prompts)]


def check_token_ids(tokens: Sequence[int], param: str, vocab_size: int) -> None:
    """Raises InvalidRequest, with the place of the first that is no token id."""
    if not tokens or 0 <= min(tokens) <= max(tokens) < vocab_size:
        return
    index = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
    place = f"{param}[{index}]"
    raise InvalidRequest(f"{place}: must be a token id, from 0 to {vocab_size - 1}", param=place)


def _num_logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return body.top_logprobs if body.logprobs else None
    return body.logprobs if isinstance(body, CompletionBody) else None


def _biases(biases: dict[int, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if (highest := max(biases, default=0)) >= vocab_size:
        raise InvalidRequest(
            f"logit_bias: {highest} is no token id; they go from 0 to {vocab_size - 1}",
            param="logit_bias",
        )
    return tuple(sorted((token, bias) for token, bias in biases.items() if bias))


def _without_sign_of_zero(number: float) -> float:
    return number or 0.0
