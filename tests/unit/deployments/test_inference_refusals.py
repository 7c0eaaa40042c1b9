"""How ``chairlift.v1.Inference`` says no: with a status, the field, and when to come back."""

import asyncio
import math
from typing import Any

import grpc
import pytest

from chairlift.cluster.errors import (
    DeadlineExceeded,
    Overloaded,
    ReplicaLost,
    RequestError,
    Unavailable,
)
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.router.flight import Update
from support.fake_router import FakeRouter
from support.grpc_front import details_of, grpc_front
from support.http_app import CONTEXT_LENGTH, MAX_CHOICES
from support.inference_stub import CHAT_HI, HI, TENANTS, Stub, failure, key, read


def sampling(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", sampling=pb.Sampling(**fields))


BAD = [
    (pb.GenerateRequest(), "input"),
    (pb.GenerateRequest(text=""), "text"),
    (pb.GenerateRequest(text="x" * 200), "text"),
    (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens.ids"),
    (pb.GenerateRequest(tokens=pb.TokenIds(ids=[1, 2, 257])), "tokens.ids[2]"),
    (pb.GenerateRequest(tokens=pb.TokenIds(ids=[1] * CONTEXT_LENGTH)), "tokens.ids"),
    (pb.GenerateRequest(chat=pb.Chat()), "chat.messages"),
    (pb.GenerateRequest(chat=pb.Chat(messages=[{"role": "bard"}])), "chat.messages[0].role"),
    (pb.GenerateRequest(chat=pb.Chat(messages=[{"role": "user"}])), "chat.messages[0].content"),
    (pb.GenerateRequest(text="hi", n=0), "n"),
    (pb.GenerateRequest(text="hi", n=MAX_CHOICES + 1), "n"),
    (pb.GenerateRequest(text="hi", priority=17), "priority"),
    (pb.GenerateRequest(text="hi", deadline_ms=0), "deadline_ms"),
    (pb.GenerateRequest(text="hi", cache_salt=""), "cache_salt"),
    (sampling(max_tokens=0), "sampling.max_tokens"),
    (sampling(max_tokens=-1), "sampling.max_tokens"),
    (sampling(max_tokens=10**9), "sampling.max_tokens"),
    (sampling(min_tokens=17), "sampling.min_tokens"),
    (sampling(temperature=-1), "sampling.temperature"),
    (sampling(temperature=math.nan), "sampling.temperature"),
    (sampling(top_p=0), "sampling.top_p"),
    (sampling(top_k=-2), "sampling.top_k"),
    (sampling(min_p=2), "sampling.min_p"),
    (sampling(presence_penalty=3), "sampling.presence_penalty"),
    (sampling(frequency_penalty=-3), "sampling.frequency_penalty"),
    (sampling(repetition_penalty=math.inf), "sampling.repetition_penalty"),
    (sampling(logit_bias={257: 1}), "sampling.logit_bias"),
    (sampling(logit_bias={1: math.nan}), "sampling.logit_bias"),
    (sampling(logit_bias=dict.fromkeys(range(10_000), 1)), "sampling.logit_bias"),
    (sampling(allowed_token_ids=[257]), "sampling.allowed_token_ids[0]"),
    (sampling(stop=["a"] * 65), "sampling.stop"),
    (sampling(stop=["a", ""]), "sampling.stop[1]"),
    (sampling(stop_token_ids=[5, 300]), "sampling.stop_token_ids[1]"),
    (sampling(logprobs=21), "sampling.logprobs"),
]


@pytest.mark.parametrize(("request_", "field"), BAD, ids=[field for _, field in BAD])
def test_a_wrong_field_is_named_where_the_client_wrote_it(request_, field):
    router = FakeRouter()
    error = failure(lambda stub: stub.Generate(request_), router)
    details = details_of(error)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [each.field for each in details["BadRequest"].field_violations] == [field]
    assert error.details().startswith(f"{field}: ")
    assert not router.flights


def test_log_probabilities_of_a_chat_are_checked_under_their_one_name():
    request = pb.GenerateRequest(chat=CHAT_HI.chat, sampling=pb.Sampling(logprobs=21))
    details = details_of(failure(lambda stub: stub.Generate(request)))
    assert details["BadRequest"].field_violations[0].field == "sampling.logprobs"
    request = pb.GenerateRequest(chat=CHAT_HI.chat, echo=True)
    assert details_of(failure(lambda stub: stub.Generate(request)))["ErrorInfo"].metadata == {
        "code": "unsupported_parameter",
        "type": "invalid_request_error",
    }


def test_what_is_no_message_is_the_clients_fault():
    async def main() -> None:
        async with grpc_front() as channel:
            call = channel.unary_unary("/chairlift.v1.Inference/Generate")
            for data in (b"\xff", b"\x12\x05ab", b"\x12\x02\xff\xfe"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(data)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert details_of(caught.value)["ErrorInfo"].reason == "INVALID_MESSAGE"
            assert (await Stub(channel).Generate(HI)).choices

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded("full", retry_after_s=2.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Unavailable("nobody", retry_after_s=1.0), grpc.StatusCode.UNAVAILABLE),
        (ReplicaLost("gone"), grpc.StatusCode.UNAVAILABLE),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (ZeroDivisionError("secret"), grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("begun", [False, True], ids=["at once", "begun"])
def test_an_error_has_a_status_a_reason_and_says_when_to_come_back(error, code, begun):
    def refuse(request: Any) -> None:
        raise error

    router = FakeRouter()
    if not begun:
        router.admission = refuse
    elif isinstance(error, RequestError):
        router.script = lambda request: [[Update(0, "a", 1, None)], error]
    else:
        router.script = lambda request: [[Update(5, "no such choice", 1, None)]]
    failed = failure(lambda stub: read(stub.GenerateStream(HI)), router)
    details = details_of(failed)
    assert failed.code() is code
    assert "secret" not in str(failed.details())
    assert details["ErrorInfo"].domain == "chairlift"
    if isinstance(error, RequestError):
        assert details["ErrorInfo"].reason == error.code.upper()
    retry_after_s = getattr(error, "retry_after_s", None)
    assert ("RetryInfo" in details) == (retry_after_s is not None)
    if retry_after_s:
        delay = details["RetryInfo"].retry_delay
        assert delay.seconds + delay.nanos / 1e9 == retry_after_s
    assert dict(failed.trailing_metadata())["x-request-id"]
    router.check_idle()


CALLS: list[tuple[str, Any]] = [
    ("Generate", HI),
    ("GenerateStream", HI),
    ("Abort", pb.AbortRequest(request_id="x")),
    ("GetModelInfo", pb.GetModelInfoRequest()),
    ("GetLoad", pb.GetLoadRequest()),
    ("Tokenize", pb.TokenizeRequest(text="hi")),
    ("Detokenize", pb.DetokenizeRequest(token_ids=[65])),
]


@pytest.mark.parametrize(("method", "request_"), CALLS, ids=[name for name, _ in CALLS])
@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "MISSING_API_KEY"),
        ((("authorization", "Basic YQ=="),), "MISSING_API_KEY"),
        (key("x"), "INVALID_API_KEY"),
    ],
    ids=["none", "basic", "unknown"],
)
def test_without_a_known_key_nothing_is_told(method, request_, metadata, reason):
    async def scenario(stub: Stub) -> None:
        made = getattr(stub, method)(request_, metadata=metadata)
        await (read(made) if method == "GenerateStream" else made)

    router = FakeRouter()
    error = failure(scenario, router, tenants=TENANTS)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert details_of(error)["ErrorInfo"].reason == reason
    assert not router.flights


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), "input"),
        ("Tokenize", pb.TokenizeRequest(text="a", model="no"), "model"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat()), "chat.messages"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1, 257]), "token_ids[1]"),
        ("Generate", pb.GenerateRequest(text="a", model="no"), "model"),
    ],
)
def test_other_methods_name_the_field_too(method, request_, field):
    error = failure(lambda stub: getattr(stub, method)(request_))
    wanted = "NOT_FOUND" if field == "model" else "INVALID_ARGUMENT"
    assert error.code().name == wanted
    assert details_of(error)["BadRequest"].field_violations[0].field == field


def test_a_message_over_the_limit_is_refused_and_the_next_one_served():
    error = failure(lambda stub: stub.Generate(pb.GenerateRequest(text="x" * 9_000_000)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
