"""Translation between ``cluster.protocol`` and the messages of ``worker.proto``.

Owns the byte layout of the data plane, and nothing else. Messages from the network are checked
here, so a malformed one raises ``ValueError`` at the edge instead of doing harm inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    Answer,
    Batching,
    Controls,
    Delta,
    FinishReason,
    Frame,
    LoadReport,
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
    "frame_from_wire",
    "frame_to_wire",
    "submission_from_wire",
    "submission_to_wire",
    "welcome_from_wire",
    "welcome_to_wire",
]


def submission_to_wire(submission: Submission) -> pb.Submit:
    request, sampling = submission.request, submission.request.sampling
    return pb.Submit(
        handle=submission.handle,
        request_id=request.id,
        tenant=request.tenant,
        prompt=request.prompt,
        n=request.n,
        sampling=pb.Sampling(
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
        ),
    )


def submission_from_wire(message: pb.Submit) -> Submission:
    """Raises ValueError for a submission that no router of ours would send."""
    sampling = message.sampling
    if not message.prompt:
        raise ValueError("prompt: has no tokens")
    if message.n < 1:
        raise ValueError("n: must be at least 1")
    if sampling.max_tokens < 1:
        raise ValueError("max_tokens: must be at least 1")
    return Submission(
        handle=message.handle,
        request=Request(
            id=message.request_id,
            tenant=message.tenant,
            prompt=tuple(message.prompt),
            n=message.n,
            sampling=SamplingParams(
                max_tokens=sampling.max_tokens,
                seed=sampling.seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                stop_token_ids=tuple(sampling.stop_token_ids),
                ignore_eos=sampling.ignore_eos,
            ),
        ),
    )


def controls_to_wire(controls: Controls) -> pb.Controls:
    return pb.Controls(
        version=controls.version,
        batching=controls.batching.value,
        token_budget=controls.token_budget,
        max_sequences=controls.max_sequences,
    )


def controls_from_wire(message: pb.Controls) -> Controls:
    """Raises ValueError for an unknown batching mode or limits below 1."""
    if message.token_budget < 1 or message.max_sequences < 1:
        raise ValueError("controls: token_budget and max_sequences must be at least 1")
    return Controls(
        version=message.version,
        batching=Batching(message.batching),
        token_budget=message.token_budget,
        max_sequences=message.max_sequences,
    )


def answer_to_wire(answer: Answer) -> pb.Answer:
    return pb.Answer(handle=answer.handle, refusal=answer.refusal or 0, detail=answer.detail)


def answer_from_wire(message: pb.Answer) -> Answer:
    refusal = Refusal(message.refusal) if message.refusal else None
    return Answer(handle=message.handle, refusal=refusal, detail=message.detail)


def frame_to_wire(deltas: Sequence[Delta], load: LoadReport) -> pb.Frame:
    return pb.Frame(
        handles=[delta.handle for delta in deltas],
        counts=[len(delta.tokens) for delta in deltas],
        tokens=_flatten(delta.tokens for delta in deltas),
        finishes=[delta.finish or 0 for delta in deltas],
        load=pb.Load(
            step=load.step,
            running=load.running,
            waiting=load.waiting,
            waiting_tokens=load.waiting_tokens,
            blocks_used=load.blocks_used,
            blocks_total=load.blocks_total,
            preemptions=load.preemptions,
            tokens_computed=load.tokens_computed,
            tokens_generated=load.tokens_generated,
        ),
    )


def frame_from_wire(message: pb.Frame) -> Frame:
    """Raises ValueError when the columns do not have the same number of rows."""
    counts = message.counts
    if not len(message.handles) == len(counts) == len(message.finishes):
        raise ValueError("frame: columns of different lengths")
    tokens = tuple(message.tokens)
    bounds = list(accumulate(counts, initial=0))
    if bounds[-1] != len(tokens):
        raise ValueError("frame: counts do not add up to the tokens")
    deltas = tuple(
        Delta(handle, tokens[start:stop], FinishReason(finish) if finish else None)
        for handle, (start, stop), finish in zip(
            message.handles, pairwise(bounds), message.finishes, strict=True
        )
    )
    return Frame(deltas=deltas, load=_load_from_wire(message.load))


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


def _load_from_wire(message: pb.Load) -> LoadReport:
    return LoadReport(
        step=message.step,
        running=message.running,
        waiting=message.waiting,
        waiting_tokens=message.waiting_tokens,
        blocks_used=message.blocks_used,
        blocks_total=message.blocks_total,
        preemptions=message.preemptions,
        tokens_computed=message.tokens_computed,
        tokens_generated=message.tokens_generated,
    )


def _flatten(parts: Iterable[tuple[int, ...]]) -> list[int]:
    return [token for part in parts for token in part]
