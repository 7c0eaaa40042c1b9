"""Translation between ``cluster.protocol`` and the messages of ``worker.proto``.

Owns the byte layout of the data plane, but for frames (``cluster.wire_frame``). Messages from the
network are checked here, so a malformed one raises ``ValueError`` at the edge instead of doing harm
inside.
"""

from __future__ import annotations

import math

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    Answer,
    Batching,
    Controls,
    Priority,
    Refusal,
    ReplicaInfo,
    Request,
    SamplingParams,
    Submission,
)

__all__ = [
    "answer_from_wire",
    "answer_to_wire",
    "controls_from_wire",
    "controls_to_wire",
    "submission_from_wire",
    "submission_to_wire",
    "welcome_from_wire",
    "welcome_to_wire",
]


_SIZES = ("vocab_size", "max_sequence_tokens", "max_sequences", "block_size", "blocks_total")
_MAX_HANDLE = 2**64


def submission_to_wire(submission: Submission) -> pb.Submit:
    request = submission.request
    return pb.Submit(
        handle=submission.handle,
        request_id=request.id,
        tenant=request.tenant,
        prompt=request.prompt,
        n=request.n,
        sampling=_sampling_to_wire(request.sampling),
        cache_salt=request.cache_salt,
        priority=request.priority,
        weight=request.weight,
        choice=submission.choice,
        output=submission.output,
        traceparent=request.traceparent,
    )


def submission_from_wire(message: pb.Submit) -> Submission:
    """Raises ValueError for a submission that no router of ours would send."""
    if not message.prompt:
        raise ValueError("prompt: has no tokens")
    if message.n < 1:
        raise ValueError("n: must be at least 1")
    if message.handle + message.n > _MAX_HANDLE:
        raise ValueError("handle: there are not so many for n choices")
    if not 0 < message.weight < math.inf:
        raise ValueError("weight: must be above 0")
    if message.output and message.n != 1:
        raise ValueError("output: only one choice can go on")
    return Submission(
        handle=message.handle,
        choice=message.choice,
        output=tuple(message.output),
        request=Request(
            id=message.request_id,
            tenant=message.tenant,
            prompt=tuple(message.prompt),
            n=message.n,
            sampling=_sampling_from_wire(message.sampling),
            cache_salt=message.cache_salt,
            priority=Priority(message.priority),
            weight=message.weight,
            traceparent=message.traceparent,
        ),
    )


def _sampling_to_wire(sampling: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_tokens=[token for token, _ in sampling.logit_bias],
        bias_values=[value for _, value in sampling.logit_bias],
        allowed_token_ids=sampling.allowed_token_ids,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        grammar=sampling.grammar,
    )


def _sampling_from_wire(message: pb.Sampling) -> SamplingParams:
    if message.max_tokens < 1:
        raise ValueError("max_tokens: must be at least 1")
    if not message.repetition_penalty > 0:
        raise ValueError("repetition_penalty: must be above 0")
    return SamplingParams(
        max_tokens=message.max_tokens,
        seed=message.seed,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple(zip(message.bias_tokens, message.bias_values, strict=True)),
        allowed_token_ids=tuple(message.allowed_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=(message.prompt_logprobs if message.HasField("prompt_logprobs") else None),
        grammar=message.grammar,
    )


def controls_to_wire(controls: Controls) -> pb.Controls:
    return pb.Controls(
        version=controls.version,
        batching=controls.batching.value,
        token_budget=controls.token_budget,
        max_sequences=controls.max_sequences,
        by_person=controls.by_person,
        fair=controls.fair,
        reserve=controls.reserve,
        hedging=controls.hedging,
        affinity=controls.affinity,
        lowest=controls.lowest,
        demote_late=controls.demote_late,
        admit=controls.admit,
        reason=controls.reason,
    )


def controls_from_wire(message: pb.Controls) -> Controls:
    """Raises ValueError for an unknown batching mode or class, or limits below 1."""
    if message.token_budget < 1 or message.max_sequences < 1:
        raise ValueError("controls: token_budget and max_sequences must be at least 1")
    return Controls(
        version=message.version,
        batching=Batching(message.batching),
        token_budget=message.token_budget,
        max_sequences=message.max_sequences,
        by_person=message.by_person,
        fair=message.fair,
        reserve=message.reserve,
        hedging=message.hedging,
        affinity=message.affinity,
        lowest=Priority(message.lowest),
        demote_late=message.demote_late,
        admit=message.admit,
        reason=message.reason,
    )


def answer_to_wire(answer: Answer) -> pb.Answer:
    return pb.Answer(handle=answer.handle, refusal=answer.refusal or 0, detail=answer.detail)


def answer_from_wire(message: pb.Answer) -> Answer:
    refusal = Refusal(message.refusal) if message.refusal else None
    return Answer(handle=message.handle, refusal=refusal, detail=message.detail)


def welcome_to_wire(info: ReplicaInfo) -> pb.Welcome:
    return pb.Welcome(
        replica_id=info.replica_id,
        model=info.model,
        vocab_size=info.vocab_size,
        max_sequence_tokens=info.max_sequence_tokens,
        max_sequences=info.max_sequences,
        max_waiting=info.max_waiting,
        block_size=info.block_size,
        blocks_total=info.blocks_total,
    )


def welcome_from_wire(message: pb.Welcome) -> ReplicaInfo:
    """Raises ValueError for a replica that could run nothing."""
    for name in _SIZES:
        if getattr(message, name) < 1:
            raise ValueError(f"welcome: {name} must be at least 1")
    return ReplicaInfo(
        replica_id=message.replica_id,
        model=message.model,
        vocab_size=message.vocab_size,
        max_sequence_tokens=message.max_sequence_tokens,
        max_sequences=message.max_sequences,
        max_waiting=message.max_waiting,
        block_size=message.block_size,
        blocks_total=message.blocks_total,
    )
