"""What an intake hands over, as bytes that another rank turns into the same again.

The layout is the ledger's for what the scheduler is told (``ledger_codec``), and after it, for
each arrival, what only the sampler asks for. Strict: bytes that are too few, too many or make no
sense are a ValueError.

    flags u8 | the ledger's inputs
    per arrival: sampling, bias tokens, biases, allowed tokens, grammar
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from chairlift.cluster.protocol import SamplingParams
from chairlift.workers.intake import Drained
from chairlift.workers.ledger_codec import pack_inputs, read_inputs
from chairlift.workers.ledger_format import Cursor, column, text_field
from chairlift.workers.sequence import Sequence

__all__ = ["pack_drained", "unpack_drained"]

_FLAGS = struct.Struct("<B")
_STOP = 1
_SAMPLING = struct.Struct("<dddQdddIIII")  # see _pack_sampling
_NONE = 0xFFFFFFFF
"""Stands for log probabilities that nobody asked for."""


def pack_drained(drained: Drained) -> bytes:
    """All of it, in a few microseconds when there is nothing."""
    parts = [_FLAGS.pack(_STOP * drained.stop), pack_inputs(drained)]
    for sequence in drained.arrivals:
        parts.extend(_pack_sampling(sequence.sampling))
    return b"".join(parts)


def unpack_drained(message: bytes) -> Drained:
    """The other way round. Raises ValueError for bytes that ``pack_drained`` has not made."""
    if message == _NO_NEWS:  # twice in most steps
        return _NOTHING
    cursor = Cursor(message)
    try:
        (flags,) = cursor.take(_FLAGS)
        if flags & ~_STOP:
            raise ValueError(f"flags {flags} are unknown")
        inputs = read_inputs(cursor)
        arrivals = tuple(_with_sampling(sequence, cursor) for sequence in inputs.arrivals)
        cursor.end()
    except (IndexError, ValueError, struct.error) as error:
        raise ValueError(f"not what an intake has handed over: {error}") from None
    return Drained(
        controls=inputs.controls,
        arrivals=arrivals,
        cancelled=inputs.cancelled,
        left=frozenset(inputs.left),
        hand_over=inputs.hand_over,
        stop=bool(flags & _STOP),
    )


_NOTHING = Drained()
_NO_NEWS = pack_drained(_NOTHING)


def _pack_sampling(sampling: SamplingParams) -> list[bytes]:
    """What the ledger leaves out of it."""
    bias, allowed = sampling.logit_bias, sampling.allowed_token_ids
    numbers = _SAMPLING.pack(
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.top_k,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        _NONE if sampling.logprobs is None else sampling.logprobs,
        _NONE if sampling.prompt_logprobs is None else sampling.prompt_logprobs,
        len(bias),
        len(allowed),
    )
    biases = struct.pack(f"<{len(bias)}d", *(value for _, value in bias))
    tokens = column("I", [token for token, _ in bias])
    return [numbers, tokens, biases, column("I", allowed), text_field(sampling.grammar)]


def _with_sampling(sequence: Sequence, cursor: Cursor) -> Sequence:
    temperature, top_p, min_p, top_k, *rest = cursor.take(_SAMPLING)
    presence, frequency, repetition, logprobs, prompt_logprobs, num_bias, num_allowed = rest
    tokens = cursor.column("I", num_bias)
    values = cursor.take(struct.Struct(f"<{num_bias}d"))
    sequence.sampling = dataclasses.replace(
        sequence.sampling,
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=tuple(zip(tokens, values, strict=True)),
        allowed_token_ids=cursor.column("I", num_allowed),
        grammar=cursor.text(),
        logprobs=_asked(logprobs),
        prompt_logprobs=_asked(prompt_logprobs),
    )
    return sequence


def _asked(count: Any) -> int | None:
    return None if count == _NONE else int(count)
