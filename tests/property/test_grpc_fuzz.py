"""Whatever bytes a message holds, the answer is one of the API or an error of the client."""

import asyncio
import itertools

import grpc
import grpc.aio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.deployments.proto import inference_pb2, kserve_pb2
from support.fake_router import FakeRouter
from support.grpc_front import details_of, grpc_front
from support.http_app import MODEL

UNARY = [
    (f"/{service.full_name}/{method.name}", method.input_type.name)
    for module in (inference_pb2, kserve_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
]
ITS_OWN = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}

GENERATE = inference_pb2.GenerateRequest(
    text="hi",
    n=2,
    sampling={"max_tokens": 5, "temperature": 0.5, "stop": ["a"], "logit_bias": {3: 1.0}},
).SerializeToString()
INFER = kserve_pb2.ModelInferRequest(
    model_name=MODEL,
    inputs=[{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
    raw_input_contents=[b"\x02\x00\x00\x00hi"],
    parameters={"max_tokens": kserve_pb2.InferParameter(int64_param=3)},
).SerializeToString()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good message with some bytes changed, cut off or put in."""
    data = bytearray(draw(st.sampled_from([GENERATE, INFER])))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "insert", "cut"])):
            case "set":
                data[place] = draw(st.integers(0, 255))
            case "insert":
                data[place:place] = draw(st.binary(max_size=6))
            case "cut" if place:
                del data[place:]
    return bytes(data)


messages = st.lists(
    st.tuples(st.sampled_from(UNARY), st.one_of(st.binary(max_size=64), damaged())), max_size=25
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages)
def test_no_message_is_a_fault_of_the_server(sent):
    async def main() -> None:
        router = FakeRouter()
        async with grpc_front(router) as channel:
            async with asyncio.timeout(20.0):
                for (path, _), data in sent:
                    make = channel.unary_stream if path.endswith("Stream") else channel.unary_unary
                    try:
                        call = make(path)(data)
                        if path.endswith("Stream"):
                            async for _ in call:
                                pass
                        else:
                            await call
                    except grpc.aio.AioRpcError as error:
                        assert error.code() in ITS_OWN, (path, data, error)
                        assert details_of(error)["ErrorInfo"].reason
                stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
                for _, data in itertools.islice(sent, 5):
                    await stream.write(data)
                await stream.done_writing()
                async for answer in stream:
                    parsed = kserve_pb2.ModelStreamInferResponse.FromString(answer)
                    assert "fault is not in the request" not in parsed.error_message
        router.check_idle()

    asyncio.run(main())
