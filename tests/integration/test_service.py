"""The whole service on real Ray with the real model, used as its users use it."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
from collections.abc import Iterator

import grpc
import openai
import psutil
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto.inference_pb2_grpc import InferenceStub
from support.service import STOP_DEADLINE_S, Service, running_service, wait_until

pytestmark = pytest.mark.timeout(400)

MODEL = "smollm2-135m-instruct"
REPLACED_DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--max-sequences", "8", "--kv-memory", "256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, text: str, **options: object) -> str:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        **options,  # type: ignore[call-overload]  # the client's overloads are on literals
    )
    return str(answer.choices[0].message.content)


def test_chat_answers_and_counts_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=24,
    )
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_whole_answer_with_usage(client: openai.OpenAI) -> None:
    whole = ask(client, "Write one sentence about the sea 🌊.", max_tokens=32)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Write one sentence about the sea 🌊."}],
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_completions_take_token_ids_lists_and_n(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[[504, 2365], [504, 2365]], n=2, max_tokens=5, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 1


def test_errors_are_those_of_the_official_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.completions.create(model=MODEL, prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="a")
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.completions.create(model=MODEL, prompt="a", suffix="b")
    assert unsupported.value.param == "suffix"
    assert ask(client, "Hi", max_tokens=4)


def test_grpc_gives_the_same_answer_as_http_and_is_found_by_reflection(
    service: Service, client: openai.OpenAI
) -> None:
    question = "Write one sentence about the sea 🌊."
    request = pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=question)]),
        sampling=pb.Sampling(max_tokens=32, temperature=0),
    )
    with grpc.insecure_channel(service.grpc_address) as channel:
        stub = InferenceStub(channel)
        chunks = list(stub.GenerateStream(request, timeout=60))
        (choice,) = stub.Generate(request, timeout=60).choices
        assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
        assert choice.text == ask(client, question, max_tokens=32)
        assert len(choice.token_ids) == chunks[-1].usage.completion_tokens
        answered = stub.Detokenize(pb.DetokenizeRequest(token_ids=choice.token_ids))
        assert answered.text == choice.text
        names = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "inference.GRPCInferenceService" in names
        stream = stub.GenerateStream(
            pb.GenerateRequest(text="a", sampling={"max_tokens": 2000, "ignore_eos": True})
        )
        next(stream)
        stream.cancel()
    wait_until(lambda: service.total("chairlift_requests_open") == 0, 10.0, "no open request")


def test_concurrent_streams_do_not_change_each_other(client: openai.OpenAI) -> None:
    questions = [f"Name {count} colours." for count in range(2, 14)]
    alone = [ask(client, question, max_tokens=12) for question in questions[:3]]
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda q: ask(client, q, max_tokens=12), questions))
    assert together[:3] == alone


def test_client_that_leaves_frees_its_seat(service: Service, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    wait_until(
        lambda: (
            service.total("chairlift_requests_open") == 0
            and service.total("vllm:num_requests_running") == 0
            and service.total("vllm:kv_cache_usage_perc") == 0
        ),
        10.0,
        "no open request, no running sequence, no used block",
    )


def test_killed_worker_is_replaced_and_serves_again(
    service: Service, client: openai.OpenAI
) -> None:
    before = ask(client, "Say hello.", max_tokens=8)
    (pid,) = service.worker_pids()
    os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        return service.worker_pids() not in ([], [pid]) and service.live_replicas() == 1

    wait_until(replaced, REPLACED_DEADLINE_S, "a new worker that serves")
    assert ask(client, "Say hello.", max_tokens=8) == before


def test_sigterm_stops_all_that_was_started(service: Service) -> None:
    """The last one here, for it ends the service of the others."""
    stops_all_that_was_started(service, signal.SIGTERM)


@pytest.mark.slow
def test_so_does_ctrl_c() -> None:
    with running_service("--max-sequences", "4", "--kv-memory", "64MiB") as service:
        stops_all_that_was_started(service, signal.SIGINT)


def stops_all_that_was_started(service: Service, number: signal.Signals) -> None:
    started = service.descendants()
    assert len(started) > 3
    folder = service.ray_folder()
    assert folder.exists()
    assert service.signal(number) == 0, service.output.read_text()
    wait_until(
        lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started),
        STOP_DEADLINE_S,
        "every process gone",
    )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", service.port))
    assert not folder.exists()
