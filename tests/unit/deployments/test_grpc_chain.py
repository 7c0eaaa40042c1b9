"""gRPC over a real router and real engines with a fake model, beside HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto import inference_pb2_grpc as pb_grpc
from chairlift.router.router import Router
from support.flights import embedded_tokenizer, ended, with_router
from support.grpc_front import details_of, grpc_front
from support.http_front import http_front
from support.replicas import eventually

PROMPT = [5, 6, 7]


def wanted(max_tokens: int = 1000, n: int = 1, **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokens=pb.TokenIds(ids=PROMPT),
        n=n,
        sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=True, **sampling),
    )


@asynccontextmanager
async def stub_for(router: Router) -> AsyncIterator[Any]:
    changes: dict[str, Any] = {"tokenizer": embedded_tokenizer(), "context_length": 4096}
    async with grpc_front(router, **changes) as channel:
        yield pb_grpc.InferenceStub(channel)


def test_both_apis_give_the_same_text_usage_and_endings():
    fields: dict[str, Any] = {"seed": 3, "stop": ["e"], "temperature": 1.5}

    async def scenario(router, *replicas):
        body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "n": 4} | fields
        async with http_front(router) as (session, url), session.post(url, json=body) as reply:
            theirs = await reply.json()
        async with stub_for(router) as stub:
            whole = await stub.Generate(wanted(40, 4, **fields))
            stream = stub.GenerateStream(wanted(40, 4, **fields))
            chunks = [chunk async for chunk in stream]
        assert whole.usage.completion_tokens == theirs["usage"]["completion_tokens"]
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        told = sum(len(choice.token_ids) for choice in whole.choices)
        assert told == whole.usage.completion_tokens
        for ours, choice in zip(whole.choices, theirs["choices"], strict=True):
            pieces = [
                piece for chunk in chunks for piece in chunk.choices if piece.index == ours.index
            ]
            assert ours.text == choice["text"] == "".join(piece.text for piece in pieces)
            assert list(ours.token_ids) == [t for piece in pieces for t in piece.token_ids]
            assert {1: "stop", 2: "length"}[ours.finish_reason] == choice["finish_reason"]

    with_router(scenario, replicas=2)


@pytest.mark.parametrize("how", ["cancel", "deadline", "abort"])
def test_who_leaves_in_mid_answer_is_gone_within_one_step(how):
    async def scenario(router, replica):
        async with stub_for(router) as stub:
            stream = stub.GenerateStream(
                wanted(),
                timeout=1.0 if how == "deadline" else None,
                metadata=(("x-request-id", "mine"),),
            )
            await stream.read()
            replica.gate.close()
            await eventually(lambda: replica.gate.holds)
            if how == "cancel":
                stream.cancel()
            elif how == "abort":
                assert (await stub.Abort(pb.AbortRequest(request_id="mine"))).aborted == 1
            # The step is held, so whatever ends now has waited for none.
            await eventually(lambda: router.metrics.open == 0)
            await eventually(lambda: replica.intake._cancelled)
            replica.gate.let_through()
            await eventually(lambda: replica.idle)
            replica.gate.open()
            assert ended(router) == {"cancelled": 1}
            assert (await stub.Generate(wanted(3))).usage.completion_tokens == 3

    with_router(scenario, step_s=0.005)


def test_200_clients_that_leave_at_any_stage_leave_nothing():
    async def scenario(router, replica):
        async with stub_for(router) as stub:
            replica.gate.close()
            for number in range(10):
                make = stub.GenerateStream if number % 2 else stub.Generate
                calls = [make(wanted(n=1 + each % 3)) for each in range(20)]
                await eventually(lambda: router.metrics.open == 20)
                if number > 4:
                    replica.gate.open()
                    enough = router.metrics.generated_tokens + 40
                    await eventually(lambda enough=enough: router.metrics.generated_tokens > enough)
                for each in calls:
                    each.cancel()
                await eventually(lambda: router.metrics.open == 0)
            await eventually(lambda: replica.idle)
            router.check_integrity()
            assert ended(router) == {"cancelled": 200}
            assert (await stub.Generate(wanted(2))).usage.completion_tokens == 2

    with_router(scenario, step_s=0.005)


def test_what_cannot_start_before_the_deadline_is_refused_with_a_reason():
    async def scenario(router, replica):
        async with stub_for(router) as stub:
            request = wanted()
            request.deadline_ms = 100
            replica.gate.close()
            busy = [stub.Generate(wanted()) for _ in range(4)]
            await eventually(lambda: router.metrics.open == 4)
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await stub.Generate(request)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert details_of(late.value)["ErrorInfo"].reason == "DEADLINE_EXCEEDED"
            for each in busy:
                each.cancel()
            replica.gate.open()

    with_router(scenario, max_sequences=2)


def test_a_router_that_shuts_down_says_so():
    async def scenario(router, replica):
        async with stub_for(router) as stub:
            stream = stub.GenerateStream(wanted())
            await stream.read()
            await router.close()
            with pytest.raises(grpc.aio.AioRpcError) as ended_:
                while await stream.read():
                    pass
            assert ended_.value.code() is grpc.StatusCode.UNAVAILABLE
            assert details_of(ended_.value)["ErrorInfo"].reason == "SHUTTING_DOWN"

    with_router(scenario, step_s=0.005)
