"""What routers and workers say to each other, and rank 0 to the other ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.block_names import short_names
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    Answer,
    BlockEvents,
    Controls,
    Delta,
    FinishReason,
    LoadReport,
    Refusal,
    TokenLogprobs,
)
from chairlift.router.detokenizer import Detokenizer
from chairlift.router.dispatch import Dispatch
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.drained_codec import pack_drained, unpack_drained
from chairlift.workers.intake import Drained, Intake
from chairlift.workers.submitting import Submitting
from fuzz.damage import damaged, noise
from fuzz.target import Feed, Refused, Target, need
from support.engines import Rig, replica_info, submission
from support.vocabularies import byte_level_metadata, tokenizer_of

__all__ = ["RANKS", "TO_ROUTER", "TO_WORKER"]

MAX_STEPS = 40
SUBMISSIONS = [
    submission(2, n=2, tenant="ann", stop_token_ids=(3,), logprobs=2, seed=7),
    submission(2**40, (1, 2, 3, 4, 5), output=(6, 7), temperature=0.5, max_tokens=9),
    submission(8, (9,), salt="s", logit_bias=((1, 2.0), (4, -1.0)), allowed_token_ids=(1, 4)),
]
CONTROLS = Controls(version=3, max_sequences=2, token_budget=32, reason="why")
LOGPROBS = (TokenLogprobs(-0.5, ((1, -0.5), (2, -1.5))),)
DELTAS = [
    Delta(2, (5,), None, 3, LOGPROBS),
    Delta(3, (6, 7), FinishReason.LENGTH),
    Delta(8, (), FinishReason.CANCELLED),
]


def _to_worker(scratch: Path) -> st.SearchStrategy[bytes]:
    submits = [wire.submission_to_wire(each) for each in SUBMISSIONS]
    good = [
        pb.ToWorker(hello=pb.Hello(router_id="r", protocol_version=1), submits=submits),
        pb.ToWorker(submits=submits[:1], cancels=[2, 3, 2**63]),
        pb.ToWorker(controls=wire.controls_to_wire(CONTROLS), submits=submits[1:2]),
    ]
    return st.one_of(damaged([each.SerializeToString() for each in good], LENGTHS), noise)


def _to_router(scratch: Path) -> st.SearchStrategy[bytes]:
    load = LoadReport(stamp=1, step=4, running=2, waiting=1, blocks_used=3, blocks_total=64)
    blocks = BlockEvents(False, (1, 2, 2**63), (3,))
    frame = wire_frame.frame_to_wire(DELTAS, load, blocks)
    answers = [
        wire.answer_to_wire(Answer(2)),
        wire.answer_to_wire(Answer(8, Refusal.QUEUE_FULL, "full")),
    ]
    good = [
        pb.FromWorker(welcome=wire.welcome_to_wire(replica_info()), answers=answers),
        pb.FromWorker(answers=answers, frame=frame),
        pb.FromWorker(frame=wire_frame.frame_to_wire(DELTAS[:1], load)),
    ]
    return st.one_of(damaged([each.SerializeToString() for each in good], LENGTHS), noise)


LENGTHS = [b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80" * 12]
"""Varints of 32 and 64 bits, and one that is too long."""


def _parse(kind: type[Message], data: bytes) -> Message:
    """As gRPC does it, which ends the stream where this fails."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(str(error)) from None


@contextmanager
def _worker(scratch: Path) -> Iterator[Feed]:
    """Wire, intake and an engine that runs what was accepted."""
    with asyncio.Runner() as runner:
        yield lambda data: runner.run(_run_through(data))


async def _run_through(data: bytes) -> None:
    message = _parse(pb.ToWorker, data)
    rig = Rig(info=replica_info(max_sequence_tokens=64, blocks_total=64))
    answers: list[Answer] = []
    submitting = Submitting(rig.intake, 1, answers.append)
    refused = _take_in(message, rig, submitting)
    for _ in range(MAX_STEPS):
        if not rig.engine.step():
            break
        rig.scheduler.check_integrity()
    submitting.leave()
    rig.run_until_idle(MAX_STEPS)
    need(rig.intake.num_open == 0, "something stays open")
    for output in rig.outputs:
        for deltas in output.deltas.values():
            wire_frame.frame_to_wire(deltas, output.load, output.blocks).SerializeToString()
    for answer in answers:
        wire.answer_to_wire(answer).SerializeToString()
    if refused or any(answer.refusal is not None for answer in answers):
        raise Refused(refused)


def _take_in(message: pb.ToWorker, rig: Rig, submitting: Submitting) -> str:
    """As the worker's server does it; what was refused, if anything was."""
    refused = ""
    for submit in message.submits:
        try:
            submitting.submit(wire.submission_from_wire(submit))
        except ValueError as error:
            refused = str(error)
    submitting.cancel(tuple(message.cancels))
    if message.HasField("controls"):
        try:
            rig.intake.set_controls(wire.controls_from_wire(message.controls))
        except ValueError as error:
            refused = str(error)
    return refused


class _Listener:
    """Makes text of what comes, as a flight does."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self.lost = 0

    def answered(self, answer: Answer) -> None:
        pass

    def receive(self, delta: Delta, at: float) -> None:
        self._detokenizer.feed(delta.tokens)

    def lose(self, reason: str) -> None:
        self.lost += 1


@contextmanager
def _router(scratch: Path) -> Iterator[Feed]:
    vocabulary = tokenizer_of(byte_level_metadata("a b"))
    yield lambda data: _hear(data, vocabulary)


def _hear(data: bytes, vocabulary: Tokenizer) -> None:
    message = _parse(pb.FromWorker, data)
    dispatch = Dispatch(lambda: 1.0)
    for each in SUBMISSIONS:
        dispatch.expect(each, _Listener(Detokenizer(vocabulary)))
    try:
        if message.HasField("welcome"):
            info = wire.welcome_from_wire(message.welcome)
            short_names(range(1000), "", info.block_size)
        dispatch.receive(message)
    except ValueError as error:
        raise Refused(str(error)) from None
    finally:
        dispatch.lose("over")
        need(dispatch.num_open == 0, "something stays open")


def _between_ranks(scratch: Path) -> st.SearchStrategy[bytes]:
    intake = Intake(replica_info())
    for each in SUBMISSIONS:
        intake.submit(1, each)
    intake.set_controls(CONTROLS)
    intake.cancel(1, [3])
    return st.one_of(damaged([pack_drained(intake.drain())]), noise)


@contextmanager
def _rank(scratch: Path) -> Iterator[Feed]:
    yield lambda data: _agree(unpack_drained(data))


def _agree(news: Drained) -> None:
    """What is believed can be told on."""
    unpack_drained(pack_drained(news))


TO_WORKER = Target("router to worker", _to_worker, _worker)
TO_ROUTER = Target("worker to router", _to_router, _router)
RANKS = Target("rank 0 to ranks", _between_ranks, _rank, (ValueError,))
