"""Plays a load against a service's gRPC API; every request becomes a record, as over HTTP.

Owns the messages, whose types it learns from the service itself by reflection. A load asks for the
same as ``load_run`` does over HTTP: greedy, past the end token, exact lengths.
"""

from __future__ import annotations

import asyncio
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

from chairlift.evaluation.engine_run import Work, digest_of
from chairlift.evaluation.load import Ask, closed_loop, started_clock
from chairlift.evaluation.load_run import LoadRun
from chairlift.evaluation.loads import Load
from chairlift.evaluation.records import RequestRecord

__all__ = ["GrpcClient", "GrpcTarget", "grpc_ask", "learn", "run_grpc_load"]

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
    asks = iter([grpc_ask(target, work) for work in load.work])
    async with grpc.aio.insecure_channel(target.address) as channel:
        clock, cpu = started_clock(), time.process_time()
        client = GrpcClient(channel, target, clock=clock, timeout_s=timeout_s)
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


def grpc_ask(target: GrpcTarget, work: Work, seed: int | None = None) -> Ask:
    """One request, greedy, with exact lengths; the seed matters to simulated models alone."""
    sampling = {"max_tokens": work.output, "temperature": 0.0, "ignore_eos": True, "seed": seed}
    fields: dict[str, Any] = {"tokens": {"ids": work.prompt}, "sampling": sampling}
    message = target.request(**fields)
    return Ask(work.at_s, len(work.prompt), work.output, message.SerializeToString())


class GrpcClient:
    """Sends requests over one channel; a failure becomes a record, never an exception."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: GrpcTarget,
        *,
        clock: Callable[[], float],
        timeout_s: float,
        key: str = "",
    ) -> None:
        """``key`` is the API key to go with each request; "" for none."""
        self._stream: Callable[..., Any] = channel.unary_stream(
            f"/{_SERVICE}/{_METHOD}", bytes, target.chunk.FromString
        )
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._clock = clock
        self._timeout_s = timeout_s

    async def send(self, ask: Ask, intended: float) -> RequestRecord:
        """Send now and follow to the end; ``intended`` goes to the record."""
        sent, chunks, last = self._clock(), [], None
        tokens: list[int] = []
        failure, detail = None, ""
        wait_s = ask.wait_s(sent - intended, self._timeout_s)
        try:
            async with asyncio.timeout(wait_s) as limit:
                call = self._stream(ask.body, timeout=self._timeout_s, metadata=self._metadata)
                async for chunk in call:
                    chunks.append(self._clock())
                    tokens += [each for choice in chunk.choices for each in choice.token_ids]
                    last = chunk
                    limit.reschedule(None)
        except TimeoutError:
            failure, detail = "gave_up", f"no first token within {ask.patience_s} s"
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
            digest=digest_of(tokens),
        )
