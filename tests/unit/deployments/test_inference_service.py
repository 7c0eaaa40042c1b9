"""``chairlift.v1.Inference`` as a client of grpcio sees it."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from chairlift.cluster.protocol import FinishReason
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.router.flight import Update
from support.asgi_client import call as http_call
from support.asgi_client import until
from support.fake_router import FakeRouter
from support.fake_tokenizer import BOS
from support.grpc_front import details_of
from support.http_app import CHAT, CHAT_TOKENS, CONTEXT_LENGTH, MAX_CHOICES, MODEL, http_app
from support.inference_stub import CHAT_HI, HI, TENANTS, Stub, key, read, with_stub
from support.scored import ScriptedRouter, logprobs_of, says

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_whole_answer_has_its_text_tokens_usage_and_seed():
    router = FakeRouter()
    answer = with_stub(lambda stub: stub.Generate(HI), router)
    (choice,) = answer.choices
    assert (choice.index, choice.text, answer.model) == (0, "Hello world", MODEL)
    assert list(choice.token_ids) == [100, 101, 102, 103, 104]
    assert choice.finish_reason == pb.FINISH_REASON_STOP
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 5)
    assert answer.seed == router.requests[0].sampling.seed
    router.check_idle()


def test_a_stream_has_a_chunk_a_turn_and_joined_it_is_the_whole_answer():
    request = pb.GenerateRequest(text="hi", n=3, sampling=pb.Sampling(seed=2**64 - 1))
    router = FakeRouter()
    chunks = with_stub(lambda stub: read(stub.GenerateStream(request)), router)
    whole = with_stub(lambda stub: stub.Generate(request))
    assert [chunk.seed for chunk in chunks] == [2**64 - 1, 0]
    assert [chunk.HasField("usage") for chunk in chunks] == [False, True]
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        pieces = [chunk.choices[choice.index] for chunk in chunks]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [token for piece in pieces for token in piece.token_ids] == choice.token_ids
        assert [piece.finish_reason for piece in pieces] == [0, choice.finish_reason]
    router.check_idle()


EVERYTHING = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {5: 1.5, 9: -100.0},
    "allowed_token_ids": [5, 9, 7],
    "seed": 123,
    "stop": ["a", "b"],
    "stop_token_ids": [4, 3],
    "ignore_eos": True,
    "logprobs": 2,
}
TERMS = {"n": 2, "cache_salt": "x", "deadline_ms": 1500}


@pytest.mark.parametrize("kind", ["text", "tokens", "chat"])
@pytest.mark.parametrize("fields", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_same_fields_make_the_same_request_as_over_http(kind, fields):
    terms = TERMS if fields else {}
    body: dict[str, Any] = {
        **fields,
        **terms,
        "model": MODEL,
        "priority": "batch" if fields else None,
        "seed": 123,
    }
    if fields:
        body["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    path = "/v1/completions"
    match kind:
        case "text":
            body["prompt"], given = "hi", {"text": "hi"}
        case "tokens":
            body["prompt"], given = [5, 6], {"tokens": pb.TokenIds(ids=[5, 6])}
        case _:
            body |= CHAT
            given, path = {"chat": CHAT_HI.chat}, "/v1/chat/completions"
            if fields:
                body |= {"logprobs": True, "top_logprobs": 2}
    request = pb.GenerateRequest(
        **given,
        **terms,
        model=MODEL,
        priority=pb.PRIORITY_BATCH if fields else pb.PRIORITY_UNSPECIFIED,
        sampling=pb.Sampling(**(fields | {"seed": 123})),
    )
    script = says(b"ab")
    over_http, over_grpc = RecordingRouter(script), RecordingRouter(script)
    reply = asyncio.run(http_call(http_app(over_http), "POST", path, body))
    assert reply.status == 200, reply.body
    with_stub(lambda stub: stub.Generate(request), over_grpc)
    (theirs,), (ours,) = over_http.asks, over_grpc.asks
    assert replace(ours, request=replace(ours.request, id=theirs.request.id)) == theirs


class RecordingRouter(ScriptedRouter):
    """Keeps what it was asked."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.asks: list[Any] = []

    def submit(self, ask: Any) -> Any:
        self.asks.append(ask)
        return super().submit(ask)


def test_log_probabilities_are_typed_and_the_echo_has_those_of_the_prompt():
    sampling = pb.Sampling(max_tokens=2, logprobs=2)
    request = pb.GenerateRequest(text="é", echo=True, sampling=sampling)
    router = ScriptedRouter(says([65], [66], finish=FinishReason.LENGTH))
    answer = with_stub(lambda stub: stub.Generate(request), router)
    (choice,) = answer.choices
    prompt = [BOS, *"é".encode()]
    assert choice.text == "éAB"
    assert list(choice.token_ids) == [65, 66]
    assert [entry.token_id for entry in choice.logprobs] == [*prompt, 65, 66]
    assert b"".join(entry.token for entry in choice.logprobs) == "éAB".encode()
    assert not choice.logprobs[0].HasField("logprob")
    for entry in choice.logprobs[1:]:
        expected = logprobs_of(entry.token_id, 2)
        assert entry.logprob == expected.chosen
        assert [(top.token_id, top.logprob) for top in entry.top] == list(expected.top)


def test_only_the_prompt_is_scored_where_no_tokens_are_wanted():
    sampling = pb.Sampling(max_tokens=0, logprobs=0)
    request = pb.GenerateRequest(tokens=pb.TokenIds(ids=[65, 66]), echo=True, sampling=sampling)
    router = ScriptedRouter(says([67], finish=FinishReason.LENGTH))
    answer = with_stub(lambda stub: stub.Generate(request), router)
    (choice,) = answer.choices
    assert (choice.text, list(choice.token_ids)) == ("AB", [])
    assert len(choice.logprobs) == 2
    assert answer.usage.completion_tokens == 0
    assert choice.finish_reason == pb.FINISH_REASON_LENGTH


def test_a_request_is_its_tenants_and_carries_its_name_and_span():
    async def scenario(stub: Stub) -> dict[str, str]:
        metadata = (*key("a"), ("x-request-id", "mine"), ("traceparent", SPAN))
        made = stub.Generate(HI, metadata=metadata)
        await made
        return dict(await made.initial_metadata())

    router = FakeRouter()
    metadata = with_stub(scenario, router, tenants=TENANTS)
    (request,) = router.requests
    assert (request.tenant, request.id, request.traceparent) == ("acme", "mine", SPAN)
    assert (metadata["x-request-id"], metadata["traceparent"]) == ("mine", SPAN)


def test_the_sooner_of_deadline_and_field_is_the_time_to_the_first_token():
    async def scenario(stub: Stub) -> None:
        await stub.Generate(HI, timeout=5.0)
        request = pb.GenerateRequest(text="hi", deadline_ms=2000)
        await stub.Generate(request, timeout=5.0)
        await stub.Generate(HI)

    router = FakeRouter()
    with_stub(scenario, router)
    first, second, third = (flight.ask.deadline_s for flight in router.flights)
    assert 4.0 < first < 6.0
    assert (second, third) == (2.0, None)


def blocked(request: Any) -> list[Any]:
    """One turn, and then nothing for ever."""
    return [[Update(0, "a", 1, None)], asyncio.Event()]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("queued", [False, True], ids=["queued", "running"])
def test_a_client_that_cancels_or_runs_out_of_time_ends_its_request(streamed, queued):
    async def scenario(stub: Stub) -> None:
        make = stub.GenerateStream if streamed else stub.Generate
        for timeout_s in (None, 0.2):
            made = make(HI, timeout=timeout_s)
            reading = asyncio.create_task(read(made) if streamed else _awaited(made))
            await until(lambda: router.flights and (router.flights[-1].waiting or queued))
            if timeout_s is None:
                made.cancel()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)) as caught:
                await reading
            if timeout_s is not None:
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: router.flights[-1].closed)
        assert len(router.flights) == 2

    router = FakeRouter(blocked)
    if queued:
        router.admission = lambda request: asyncio.Event().wait()
    with_stub(scenario, router)
    router.check_idle()


async def _awaited(made: Any) -> Any:
    return await made


@pytest.mark.parametrize("queued", [False, True], ids=["queued", "running"])
def test_an_aborted_request_ends_and_only_its_own_tenant_can_abort_it(queued):
    async def scenario(stub: Stub) -> None:
        name = ("x-request-id", "mine")
        stream = stub.GenerateStream(HI, metadata=(*key("a"), name))
        reading = asyncio.create_task(read(stream))
        await until(lambda: router.flights and (router.flights[0].waiting or queued))
        wanted = pb.AbortRequest(request_id="mine")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Abort(wanted, metadata=key("o"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await stub.Abort(wanted, metadata=key("a"))).aborted == 1
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await reading
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        assert details_of(ended.value)["ErrorInfo"].reason == "ABORTED"
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await stub.Abort(wanted, metadata=key("a"))
        assert gone.value.details() == refused.value.details()

    router = FakeRouter(blocked)
    if queued:
        router.admission = lambda request: asyncio.Event().wait()
    with_stub(scenario, router, tenants=TENANTS)
    router.check_idle()


def test_a_slow_reader_is_waited_for_and_harms_nobody():
    pieces = 2000

    def long(request: Any) -> Any:
        if request.n == 2:  # somebody else's
            return [[Update(choice, "a", 1, "stop") for choice in range(2)]]
        return produce()

    produced = 0

    def produce() -> Any:
        nonlocal produced
        for number in range(pieces):
            produced += 1
            yield [Update(0, "x" * 16384, 1, "stop" if number == pieces - 1 else None)]

    async def scenario(stub: Stub) -> None:
        stream = stub.GenerateStream(HI)
        await stream.read()
        seen = -1
        while seen != produced:  # until it stands still
            seen = produced
            for _ in range(20):
                await stub.Generate(pb.GenerateRequest(text="hi", n=2))
        assert produced < pieces / 2
        size = 0
        while chunk := await stream.read():
            size += len(chunk.choices[0].text)
        assert size == (pieces - 1) * 16384

    with_stub(scenario, FakeRouter(long))


def test_what_the_model_is_and_what_its_replicas_do_is_told():
    async def scenario(stub: Stub) -> None:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.model, info.max_model_len, info.chat) == (MODEL, 60, True)
        assert (info.vocab_size, info.max_choices) == (257, MAX_CHOICES)
        load = await stub.GetLoad(pb.GetLoadRequest())
        (replica,) = load.replicas
        view = router.views[0]
        assert (replica.id, replica.live, replica.running) == (view.replica_id, True, 1)
        assert (replica.waiting, replica.report_age_s) == (0, 0.25)
        router.views = [replace(view, ready=False, load=None)]
        (replica,) = (await stub.GetLoad(pb.GetLoadRequest())).replicas
        assert not replica.live
        assert not replica.HasField("running")

    router = FakeRouter()
    router.max_sequence_tokens = 60
    with_stub(scenario, router)


def test_text_becomes_tokens_and_tokens_text():
    async def scenario(stub: Stub) -> None:
        text = "hé" * 5000
        answer = await stub.Tokenize(pb.TokenizeRequest(text=text))
        assert list(answer.token_ids) == [BOS, *text.encode()]
        assert answer.max_model_len == CONTEXT_LENGTH
        bare = pb.TokenizeRequest(text="hi", add_special_tokens=False, model=MODEL)
        assert list((await stub.Tokenize(bare)).token_ids) == [104, 105]
        chat = await stub.Tokenize(pb.TokenizeRequest(chat=CHAT_HI.chat))
        assert len(chat.token_ids) == CHAT_TOKENS
        back = await stub.Detokenize(pb.DetokenizeRequest(token_ids=answer.token_ids))
        assert back.text == text

    with_stub(scenario)
