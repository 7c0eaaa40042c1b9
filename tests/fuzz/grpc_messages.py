"""Messages of the gRPC APIs, sent to a server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import grpc
import grpc.aio
from hypothesis import strategies as st

from chairlift.deployments.proto import inference_pb2, kserve_pb2
from fuzz.damage import damaged, noise
from fuzz.target import Feed, Refused, Target, need
from support.fake_router import FakeRouter
from support.grpc_front import details_of, grpc_front
from support.http_app import MODEL

__all__ = ["GRPC", "STREAM", "UNARY", "ask", "messages"]

UNARY = [
    f"/{service.full_name}/{method.name}"
    for module in (inference_pb2, kserve_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
]
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
ITS_OWN = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}

GENERATE = inference_pb2.GenerateRequest(
    text="hi",
    n=2,
    sampling={"max_tokens": 5, "temperature": 0.5, "stop": ["a"], "logit_bias": {3: 1.0}},
).SerializeToString()
TOKENS = inference_pb2.GenerateRequest(
    tokens={"ids": [1, 2, 3]}, sampling={"max_tokens": 2, "logprobs": 1}
).SerializeToString()
TOKENIZE = inference_pb2.TokenizeRequest(text="hi").SerializeToString()
INFER = kserve_pb2.ModelInferRequest(
    model_name=MODEL,
    inputs=[{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
    raw_input_contents=[b"\x02\x00\x00\x00hi"],
    parameters={"max_tokens": kserve_pb2.InferParameter(int64_param=3)},
).SerializeToString()

NESTED = b"\x0a\xff\xff\xff\xff\x0f"
"""A field whose length is 4 GiB."""

messages = st.one_of(damaged([GENERATE, TOKENS, TOKENIZE, INFER], [NESTED]), noise)


async def ask(channel: grpc.aio.Channel, path: str, *sent: bytes) -> None:
    """Send one message, or any number to the path of many.

    Raises:
        Refused: an error of the client, with its details.
        AssertionError: another one.
    """
    try:
        if path == STREAM:
            await _converse(channel, sent)
        elif path.endswith("Stream"):
            async for _ in channel.unary_stream(path)(*sent):
                pass
        else:
            await channel.unary_unary(path)(*sent)
    except grpc.aio.AioRpcError as error:
        need(error.code() in ITS_OWN, f"{path}: {error}")
        need(details_of(error)["ErrorInfo"].reason, "no reason")
        raise Refused(error.details()) from None


async def _converse(channel: grpc.aio.Channel, sent: tuple[bytes, ...]) -> None:
    stream = channel.stream_stream(STREAM)()
    for data in sent:
        await stream.write(data)
    await stream.done_writing()
    refused = ""
    async for answer in stream:
        parsed = kserve_pb2.ModelStreamInferResponse.FromString(answer)
        need("fault is not in the request" not in parsed.error_message, parsed.error_message)
        refused = refused or parsed.error_message
    if refused:
        raise Refused(refused)


def _inputs(scratch: Path) -> st.SearchStrategy[bytes]:
    paths = st.sampled_from([*UNARY, STREAM])
    return st.builds(lambda path, data: path.encode() + b"\n" + data, paths, messages)


@contextmanager
def _open(scratch: Path) -> Iterator[Feed]:
    router = FakeRouter()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        channel = runner.run(stack.enter_async_context(grpc_front(router)))

        def feed(data: bytes) -> None:
            path, _, message = data.partition(b"\n")
            try:
                runner.run(ask(channel, path.decode(), message))
            finally:
                router.check_idle()
                router.flights.clear()

        yield feed
        runner.run(stack.aclose())


GRPC = Target("gRPC messages", _inputs, _open)
