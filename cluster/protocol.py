"""The language between routers and workers: what is asked, answered and reported.

Owns the value types that cross the data plane. It knows nothing of gRPC (``cluster.wire``
translates), of tensors, or of HTTP. All are frozen: a part that receives one may keep it.

A *handle* is a number that a router gives to each choice that it asks for; handles are unique
within one stream. A request for ``n`` choices owns the handles ``handle … handle + n - 1``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ENDLESS",
    "PROTOCOL_VERSION",
    "Answer",
    "Batching",
    "BlockEvents",
    "Controls",
    "Delta",
    "FinishReason",
    "Frame",
    "LoadReport",
    "Priority",
    "Refusal",
    "ReplicaInfo",
    "Request",
    "SamplingParams",
    "Submission",
    "TokenLogprobs",
]

PROTOCOL_VERSION = 3
"""Raised with whatever one end would misread, or leave out unnoticed, of what the other says: an
older worker would take a grammar for an unknown field, and answer in any form. A worker turns away
routers of another version; they wait for one of their own."""

ENDLESS = 2**31
"""In place of a number of steps that is not bounded."""


class FinishReason(enum.IntEnum):
    """Why a sequence ended. The value 0 on the wire means that it goes on."""

    STOP = 1
    """The last token is an end-of-sequence or stop token; it is not part of the text."""
    LENGTH = 2
    CANCELLED = 3
    FAILED = 4
    HANDED_OVER = 5
    """The replica leaves; another one can go on after the tokens that were told."""


class Priority(enum.IntEnum):
    """Class of service; a lower number goes first, and nobody waits in a class for ever."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Refusal(enum.IntEnum):
    """Why a worker does not accept a submission. The value 0 on the wire means accepted."""

    QUEUE_FULL = 1
    TOO_LONG = 2
    DRAINING = 3
    INVALID = 4


class Batching(enum.StrEnum):
    """How freed seats are given away."""

    CONTINUOUS = "continuous"
    STATIC = "static"
    STATIC_SORTED = "static-sorted"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; every value is already checked.

    Attributes:
        max_tokens: output tokens at most, ≥ 1.
        seed: 64 bits; token ``i`` of choice ``c`` depends on (seed, c, i) and the logits alone.
        temperature: 0 is greedy.
        top_p: in (0, 1]; 1 is off.
        top_k: ≥ 0; 0 is off.
        min_p: in [0, 1]; 0 is off.
        stop_token_ids: tokens that end the sequence besides the model's own end tokens.
        ignore_eos: go on past the model's own end tokens.
        min_tokens: output tokens at least; until then no end or stop token can be chosen.
        presence_penalty, frequency_penalty: in [-2, 2]; subtracted from the logits of tokens that
            stand in the output: once, and once per occurrence; 0 is off.
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens that
            stand in prompt or output; 1 is off.
        logit_bias: (token, bias) pairs, added to the logits before everything else; ascending.
        allowed_token_ids: when not empty, no other token can be chosen; ascending.
        grammar: when not empty, what the output follows (``cluster.grammar``); end tokens can then
            be chosen where it can end, and nothing else where it has ended.
        logprobs: log probabilities of this many likeliest tokens, beside the chosen one's, for
            each output token; None for none at all. Taken from the logits after bias,
            penalties and masks, before temperature and truncation.
        prompt_logprobs: the same for each prompt token but the first, from the bare logits.
    """

    max_tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, tokenised and valid.

    Attributes:
        id: the client-visible name, for logs and explanations; need not be unique.
        prompt: token ids, at least one.
        sampling: shared by all choices.
        n: number of choices.
        tenant: who is served.
        cache_salt: requests share cached prefixes only with those of the same salt.
        priority: whom it goes before in every queue.
        weight: the tenant's share of the service, relative to others of its class; > 0.
        traceparent: the span under which the request is traced (``cluster.traceparent``); "" for
            none.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    tenant: str = "anonymous"
    cache_salt: str = ""
    priority: Priority = Priority.STANDARD
    weight: float = 1.0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request on its way to one replica, under the handles ``handle … handle + n - 1``.

    Attributes:
        choice: index of the first choice. A request that was split, because a replica was lost,
            is submitted again choice by choice, each with ``n`` = 1.
        output: tokens that the choice has already; it goes on after them as if it had never been
            elsewhere. Only with ``n`` = 1, and fewer than ``max_tokens``.
    """

    handle: int
    request: Request
    choice: int = 0
    output: tuple[int, ...] = ()


class LoadReport(NamedTuple):
    """A replica's load at one moment; a tuple, for one is made per step and heartbeat.

    Attributes:
        step: number of the last finished step.
        running, waiting: sequences with and without a seat.
        waiting_tokens: tokens of all sequences that are still to be computed before they decode.
        blocks_used, blocks_total: of the KV cache; cached blocks that nobody uses count as free.
        preemptions: since the start of the replica.
        tokens_computed, tokens_generated: since the start of the replica.
        cache_queries, cache_hits: prompt tokens looked up in the prefix cache, and found there,
            since the start of the replica.
        stamp: grows with every report that is made anew; a report with a stamp that was seen
            before says nothing new, whenever it arrives.
        step_age_s: what the present step has taken so far; 0 between steps.
        routers: streams that are open, so among how many routers the free seats are shared.
        freeing: seats that are certain to be free after the next step, for their sequences reach
            their last token with it.
        draining: it takes no requests any more, and hands over those that it has.
        steps_saturated: steps since the start after which somebody had to wait for want of seats,
            blocks or tokens.
        tokens_recomputed: of ``tokens_computed``, those that had been computed before.
        step_s, predicted_s: what steps took since the start, and what they should have taken by
            the pace of the thousand before; only steps for which that was known.
        steps_left: steps until the KV cache is full if nobody ends before; ``ENDLESS`` where all
            that runs fits at its greatest length.
    """

    step: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    preemptions: int = 0
    tokens_computed: int = 0
    tokens_generated: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    stamp: int = 0
    step_age_s: float = 0.0
    routers: int = 1
    draining: bool = False
    freeing: int = 0
    steps_saturated: int = 0
    tokens_recomputed: int = 0
    step_s: float = 0.0
    predicted_s: float = 0.0
    steps_left: int = ENDLESS


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """What changed in a replica's prefix cache, by names of blocks (``cluster.block_names``).

    Attributes:
        reset: ``added`` is all there is; what was known before is void.
        added, removed: no name stands in both.
    """

    reset: bool = False
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a replica says of itself when a stream opens.

    ``max_sequence_tokens`` bounds prompt plus output: the smaller of the model's context and
    the whole KV cache.
    """

    replica_id: str
    model: str
    vocab_size: int
    max_sequence_tokens: int
    max_sequences: int
    max_waiting: int
    block_size: int
    blocks_total: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's word on a submission; ``refusal`` is None when it was accepted."""

    handle: int
    refusal: Refusal | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was: ``chosen`` itself, and the likeliest ones in falling order.

    Values are natural logarithms; ``-inf`` where a token could not be chosen.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class Delta(NamedTuple):
    """What one step did for one sequence.

    A tuple, for one is made per token at either end, in a third of the time that a frozen
    dataclass takes.

    Attributes:
        handle: the choice.
        tokens: new output tokens.
        finish: set in the sequence's last delta, and only there.
        cached_tokens: prompt tokens that were served from the prefix cache; told in one delta,
            at the latest the one with the first token.
        logprobs: one for each of ``tokens``, where asked for.
        prompt_logprobs: one for each prompt token but the first, where asked for; told once, with
            the first output token.
    """

    handle: int
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """All that one step has to tell one router."""

    deltas: tuple[Delta, ...]
    load: LoadReport
    blocks: BlockEvents | None = None


@dataclass(frozen=True, slots=True)
class Controls:
    """The versioned limits and modes in force; a higher version replaces a lower one.

    ``by_person`` says who set them: a person, or software such as a policy or a configuration.
    Without ``fair``, waiting sequences are served in order of arrival alone, whoever their tenant
    is; priorities still hold.

    Attributes:
        token_budget, max_sequences: of each replica.
        reserve: a sequence is admitted to a seat only if blocks for its greatest length are free,
            so that nobody is preempted.
        hedging: routers may compute twice what does not start, where they are configured to.
        affinity: routers may prefer replicas that have a prompt's prefix; else the least loaded.
        lowest: class of the requests that are let in at least; lower ones are refused.
        demote_late: who waits longer than the target for first tokens goes after all who do not.
        admit: share of each tenant's requests that is let in.
        reason: why they are as they are, in one line of 200 characters at most.
    """

    version: int = 0
    batching: Batching = Batching.CONTINUOUS
    token_budget: int = 512
    max_sequences: int = 32
    by_person: bool = False
    fair: bool = True
    reserve: bool = False
    hedging: bool = True
    affinity: bool = True
    lowest: Priority = Priority.BATCH
    demote_late: bool = False
    admit: float = 1.0
    reason: str = ""
