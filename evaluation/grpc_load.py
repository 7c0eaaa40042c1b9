"""Plays a load against a service's gRPC API; every request becomes a record, as over HTTP.

Owns the messages, whose types it learns from the service itself by reflection. A load asks for the
same as ``load_run`` does over HTTP: greedy, past the end token, exact lengths.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.load import Ask, closed_loop, started_clock
from chairlift.evaluation.load_run import LoadRun
from chairlift.evaluation.loads import Load
from chairlift.evaluation.records import RequestRecord

__all__ = ["GrpcTarget", "learn", "run_grpc_load"]

_SERVICE = "chairlift.v1.Inference"
_METHOD = "GenerateStream"


@dataclass(frozen=True, slots=True)
class GrpcTarget:
    """Where requests go, and the types of what goes there and comes back."""

    address: str
    request: type[Message]
    chunk: type[Message]


def learn(address: str) -> GrpcTarget:
    """Ask a service for its types."""
    with grpc.insecure_channel(address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName(_SERVICE).methods_by_name[_METHOD]
        return GrpcTarget(
            address, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        )


async def run_grpc_load(target: GrpcTarget, load: Load, timeout_s: float) -> LoadRun:
    """Send all of a closed load and follow it to its end."""
    if load.in_flight is None:
        raise ValueError(f"load {load.name} is none that keeps a number under way")
    records: list[RequestRecord] = []
    asks = iter([_ask(target, work) for work in load.work])
    async with grpc.aio.insecure_channel(target.address) as channel:
        clock, cpu = started_clock(), time.process_time()
        stream = channel.unary_stream(f"/{_SERVICE}/{_METHOD}", bytes, target.chunk.FromString)
        client = _Client(stream, clock, timeout_s)
        await closed_loop(
            asks,
            client.send,
            records.append,
            clock=clock,
            concurrency=load.in_flight,
            until=math.inf,
        )
        share = (time.process_time() - cpu) / clock()
    return LoadRun(load, tuple(records), share)


def _ask(target: GrpcTarget, work: Work) -> Ask:
    fields: dict[str, Any] = {
        "tokens": {"ids": work.prompt},
        "sampling": {"max_tokens": work.output, "temperature": 0.0, "ignore_eos": True},
    }
    message = target.request(**fields)
    return Ask(work.at_s, len(work.prompt), work.output, message.SerializeToString())


class _Client:
    """Sends requests over one channel; a failure becomes a record, never an exception."""

    def __init__(
        self, stream: Callable[..., Any], clock: Callable[[], float], timeout_s: float
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._timeout_s = timeout_s

    async def send(self, ask: Ask, intended: float) -> RequestRecord:
        sent, chunks, last = self._clock(), [], None
        failure, detail = None, ""
        try:
            async for chunk in self._stream(ask.body, timeout=self._timeout_s):
                chunks.append(self._clock())
                last = chunk
        except grpc.aio.AioRpcError as error:
            failure, detail = f"grpc_{error.code().name.lower()}", str(error.details())
        usage = last.usage if last is not None else None
        if failure is None and (usage is None or usage.completion_tokens != ask.output_tokens):
            failure, detail = "wrong_length", f"{usage} of {ask.output_tokens} output tokens"
        return RequestRecord(
            intended=intended,
            sent=sent,
            ended=self._clock(),
            asked_prompt=ask.prompt_tokens,
            asked_output=ask.output_tokens,
            chunks=tuple(chunks),
            prompt_tokens=usage and usage.prompt_tokens,
            output_tokens=usage and usage.completion_tokens,
            failure=failure,
            detail=detail,
        )
