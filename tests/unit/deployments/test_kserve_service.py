"""The open inference protocol, spoken with stubs as KServe's clients have them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from chairlift.cluster.errors import Overloaded
from chairlift.cluster.tenants import Tenant, Tenants, hash_key
from chairlift.deployments.proto import kserve_pb2 as pb
from chairlift.deployments.proto import kserve_pb2_grpc as pb_grpc
from chairlift.router.flight import Update
from support.asgi_client import until
from support.fake_router import FakeRouter
from support.grpc_front import details_of, grpc_front
from support.http_app import MODEL

Stub = pb_grpc.GRPCInferenceServiceStub
Scenario = Callable[[Any], Coroutine[Any, Any, Any]]


def text_input(text: bytes = b"hi", **changes: Any) -> pb.ModelInferRequest.InferInputTensor:
    fields: dict[str, Any] = {
        "name": "text_input",
        "datatype": "BYTES",
        "shape": [1],
        "contents": pb.InferTensorContents(bytes_contents=[text]),
    }
    return pb.ModelInferRequest.InferInputTensor(**(fields | changes))


def infer(text: bytes = b"hi", id: str = "7", **parameters: Any) -> pb.ModelInferRequest:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    return pb.ModelInferRequest(
        model_name=MODEL,
        id=id,
        inputs=[text_input(text)],
        parameters={
            name: pb.InferParameter(**{kinds[type(value)]: value})
            for name, value in parameters.items()
        },
    )


def packed(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def with_stub(scenario: Scenario, router: Any = None, **changes: Any) -> Any:
    async def main() -> Any:
        async with grpc_front(router or FakeRouter(), **changes) as channel:
            async with asyncio.timeout(20.0):
                return await scenario(Stub(channel))

    return asyncio.run(main())


async def sent(*requests: pb.ModelInferRequest) -> AsyncIterator[pb.ModelInferRequest]:
    for request in requests:
        yield request


def test_server_and_model_say_what_they_are():
    async def scenario(stub: Stub) -> None:
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        assert (await stub.ServerMetadata(pb.ServerMetadataRequest())).name == "chairlift"
        assert (await stub.ModelReady(pb.ModelReadyRequest(name=MODEL, version="1"))).ready
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name=MODEL, version="2"))).ready
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="other"))).ready
        model = await stub.ModelMetadata(pb.ModelMetadataRequest(name=MODEL))
        assert (model.name, list(model.versions)) == (MODEL, ["1"])
        tensors = [(each.name, each.datatype, list(each.shape)) for each in model.inputs]
        assert tensors == [("text_input", "BYTES", [1])]
        assert [each.name for each in model.outputs] == ["text_output"]
        router.views = []
        assert not (await stub.ServerReady(pb.ServerReadyRequest())).ready
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name=MODEL))).ready

    router = FakeRouter()
    with_stub(scenario, router)


def test_text_goes_in_and_comes_out_with_the_parameters_of_completions():
    router = FakeRouter()
    request = infer(max_tokens=7, temperature=0.5, stop="x", ignore_eos=True, seed=9)
    answer = with_stub(lambda stub: stub.ModelInfer(request), router)
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("text_output", "BYTES", [1])
    assert list(output.contents.bytes_contents) == [b"Hello world"]
    assert (answer.id, answer.model_name, answer.model_version) == ("7", MODEL, "1")
    assert answer.parameters["finish_reason"].string_param == "stop"
    assert answer.parameters["completion_tokens"].int64_param == 5
    assert answer.parameters["seed"].uint64_param == 9
    (flight,) = router.flights
    sampling = flight.request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (7, 0.5, 9)
    assert (sampling.ignore_eos, flight.ask.stop, flight.request.id) == (True, ("x",), "7")
    router.check_idle()


def test_an_answer_has_the_form_of_its_request():
    request = infer()
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(packed(b"hi"))
    answer = with_stub(lambda stub: stub.ModelInfer(request))
    assert list(answer.raw_output_contents) == [packed(b"Hello world")]
    assert not answer.outputs[0].HasField("contents")


def raw(data: bytes) -> pb.ModelInferRequest:
    request = infer()
    request.raw_input_contents.append(data)
    return request


OUTPUT = pb.ModelInferRequest.InferRequestedOutputTensor(name="logits")
BAD = [
    (pb.ModelInferRequest(model_name=MODEL), "inputs"),
    (pb.ModelInferRequest(model_name=MODEL, inputs=[text_input(), text_input()]), "inputs"),
    (pb.ModelInferRequest(model_name=MODEL, inputs=[text_input(name="x")]), "inputs"),
    (infer(b""), "inputs[text_input]"),
    (infer(b"\xff"), "inputs[text_input]"),
    (
        pb.ModelInferRequest(model_name=MODEL, inputs=[text_input(datatype="FP32")]),
        "inputs[text_input].datatype",
    ),
    (
        pb.ModelInferRequest(model_name=MODEL, inputs=[text_input(shape=[2])]),
        "inputs[text_input].shape",
    ),
    (raw(b""), "inputs[text_input]"),
    (raw(packed(b"hi") + b"x"), "inputs[text_input]"),
    (raw(b"\xff\xff\xff\xffhi"), "inputs[text_input]"),
    (
        pb.ModelInferRequest(model_name=MODEL, inputs=[text_input()], outputs=[OUTPUT]),
        "outputs[0].name",
    ),
    (infer(temperature=-1.0), "parameters[temperature]"),
    (infer(max_tokens="many"), "parameters[max_tokens]"),
    (infer(n=2), "parameters[n]"),
    (infer(logprobs=2), "parameters[logprobs]"),
    (infer(tools="x"), "parameters[tools]"),
    (infer(unknown=1), "parameters[unknown]"),
    (pb.ModelInferRequest(model_name="x", inputs=[text_input()]), "model_name"),
    (
        pb.ModelInferRequest(model_name=MODEL, model_version="2", inputs=[text_input()]),
        "model_version",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BAD, ids=[field for _, field in BAD])
def test_a_wrong_request_is_refused_by_field_alone_and_within_a_stream(request_, field):
    async def scenario(stub: Stub) -> grpc.aio.AioRpcError:
        request_.id = "bad"
        stream = stub.ModelStreamInfer(sent(request_, infer(id="good")))
        answers = [answer async for answer in stream]
        by_id: dict[str, list[str]] = {"bad": [], "good": []}
        for answer in answers:
            by_id[answer.infer_response.id].append(answer.error_message)
        assert by_id["good"] == ["", ""]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ModelInfer(request_)
        assert len(by_id["bad"]) == 1
        return refused.value

    error = with_stub(scenario)
    (violation,) = details_of(error)["BadRequest"].field_violations
    assert violation.field == field
    wanted = "NOT_FOUND" if field.startswith("model") else "INVALID_ARGUMENT"
    assert error.code().name == wanted


def test_a_stream_tells_each_turn_and_says_which_answer_is_the_last():
    async def scenario(stub: Stub) -> list[Any]:
        return [each.infer_response async for each in stub.ModelStreamInfer(sent(infer()))]

    answers = with_stub(scenario)
    told = [
        (
            answer.outputs[0].contents.bytes_contents[0],
            answer.parameters["triton_final_response"].bool_param,
        )
        for answer in answers
    ]
    assert told == [(b"Hello", False), (b" world", True)]
    assert answers[1].parameters["finish_reason"].string_param == "stop"


def test_requests_of_one_stream_overlap_and_a_failure_harms_no_other():
    gate = asyncio.Event()

    def script(request: Any) -> list[Any]:
        match request.id:
            case "slow":
                return [gate, [Update(0, "slow", 1, "stop")]]
            case "fails":
                return [[Update(0, "a", 1, None)], Overloaded("full")]
            case _:
                return [[Update(0, "quick", 1, "stop")]]

    async def scenario(stub: Stub) -> None:
        stream = stub.ModelStreamInfer()
        for name in ("slow", "fails", "quick"):
            await stream.write(infer(id=name))
        seen = []
        while len(seen) < 3:
            answer = await stream.read()
            seen.append((answer.infer_response.id, answer.error_message))
        assert sorted(seen) == [("fails", ""), ("fails", "full"), ("quick", "")]
        await stream.done_writing()
        gate.set()
        answer = await stream.read()
        assert answer.infer_response.id == "slow"
        assert await stream.read() is grpc.aio.EOF

    router = FakeRouter(script)
    with_stub(scenario, router)
    router.check_idle()


def test_a_client_that_leaves_its_stream_ends_all_of_its_requests():
    async def scenario(stub: Stub) -> None:
        stream = stub.ModelStreamInfer()
        for number in range(3):
            await stream.write(infer(id=str(number)))
        await until(lambda: len(router.flights) == 3 and all(f.waiting for f in router.flights))
        stream.cancel()
        await until(lambda: all(flight.closed for flight in router.flights))

    router = FakeRouter(lambda request: [asyncio.Event()])
    with_stub(scenario, router)
    router.check_idle()


def test_what_is_no_message_is_an_answer_of_its_own():
    async def main() -> None:
        async with grpc_front() as channel:
            call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            await call.write(b"\xff\xff")
            answer = pb.ModelStreamInferResponse.FromString(await call.read())
            assert answer.error_message == "this is no inference.ModelInferRequest"
            await call.write(infer().SerializeToString())
            answer = pb.ModelStreamInferResponse.FromString(await call.read())
            assert answer.infer_response.id == "7"
            call.cancel()

    asyncio.run(main())


def test_health_needs_no_key_and_everything_else_does():
    tenants = Tenants({hash_key("a"): Tenant("acme")}, None)

    async def scenario(stub: Stub) -> None:
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        assert (await stub.ModelReady(pb.ModelReadyRequest(name=MODEL))).ready
        calls = [
            stub.ModelInfer(infer()),
            stub.ModelMetadata(pb.ModelMetadataRequest(name=MODEL)),
            stub.ModelStreamInfer(sent(infer())).read(),
        ]
        for each in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await each
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await stub.ModelInfer(infer(), metadata=(("authorization", "Bearer a"),))
        assert [request.tenant for request in router.requests] == ["acme"]

    router = FakeRouter()
    with_stub(scenario, router, tenants=tenants)
