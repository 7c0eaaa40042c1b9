"""Both clients against the whole chain: HTTP, router, gRPC, engine with a fake model."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from chairlift.client import (
    AsyncClient,
    DeadlineExceeded,
    InvalidRequest,
    Model,
    NotConnected,
    NotFound,
    Overloaded,
    RetryPolicy,
    Unavailable,
    Usage,
)
from chairlift.cluster.config import RouterConfig
from support.asgi_client import until
from support.chain import CONTEXT_LENGTH, expected_text, running_chain
from support.clients import CLIENTS, collect, opened
from support.http_app import MODEL, USER

PROMPT = [1, 2, 3]
CHAT_PROMPT = list(b"user: hi\nassistant:")
NO_RETRIES = RetryPolicy(attempts=1)

kinds = pytest.mark.parametrize("kind", CLIENTS)


class Gate:
    """Lets the engine take ``steps`` steps and no more until it is opened; then slow ones."""

    def __init__(self, steps):
        self.steps = steps
        self.taken = 0
        self.opened = threading.Event()

    def __call__(self, plan):
        if self.taken >= self.steps:
            assert self.opened.wait(30)
            time.sleep(0.01)
        self.taken += 1


def with_both(use, **options):
    """Both clients, one after the other, against one chain."""

    async def main():
        async with running_chain(**options) as chain:
            for kind in CLIENTS:
                async with opened(kind, chain.url, retries=NO_RETRIES) as client:
                    await use(client, chain)
            await chain.until_idle()

    asyncio.run(main())


def with_client(kind, use, client=None, **options):
    async def main():
        async with (
            running_chain(**options) as chain,
            opened(kind, chain.url, retries=NO_RETRIES, **(client or {})) as ours,
        ):
            await use(ours, chain)
            if gate := options.get("delay"):
                gate.opened.set()
            await chain.until_idle()

    asyncio.run(main())


def test_a_chat_is_the_same_in_one_piece_and_streamed_and_the_model_is_found():
    async def use(client, chain):
        arguments = {"model": MODEL, "max_tokens": 20, "seed": 5}
        whole = await client.chat([USER], **arguments)
        assert whole.text == expected_text(CHAT_PROMPT, 20, seed=5)
        assert (whole.model, whole.seeds) == (MODEL, (5,))
        assert whole.choices[0].finish_reason == "length"
        assert replace(whole.usage, cached_tokens=0) == Usage(len(CHAT_PROMPT), 20)
        stream = client.stream_chat([USER], **arguments)
        deltas = await collect(stream)
        assert "".join(delta.text for delta in deltas) == whole.text
        assert deltas[-1].finish_reason == "length"
        assert (stream.seeds, stream.usage.completion_tokens) == ((5,), 20)
        assert stream.request_id not in ("", whole.request_id)
        assert await client.models() == (Model(MODEL, CONTEXT_LENGTH),)
        health = await client.health()
        assert (health.ok, health.model, len(health.replicas)) == (True, MODEL, 1)

    with_both(use)


def test_completions_of_text_and_tokens_with_choices():
    async def use(client, chain):
        whole = await client.complete(PROMPT, max_tokens=12, seed=7, n=2)
        texts = [expected_text(PROMPT, 12, seed=7, choice=choice) for choice in range(2)]
        assert [choice.text for choice in whole.choices] == texts
        deltas = await collect(client.stream_complete(PROMPT, max_tokens=12, seed=7, n=2))
        for index, text in enumerate(texts):
            assert "".join(delta.text for delta in deltas if delta.choice == index) == text
        drawn = await client.complete("ab", max_tokens=8)
        again = await client.complete("ab", max_tokens=8, seed=drawn.seeds[0])
        assert again.text == drawn.text

    with_both(use)


def test_errors_tell_status_code_field_and_request():
    async def use(client, chain):
        with pytest.raises(InvalidRequest) as caught:
            await client.chat([USER], n=0)
        error = caught.value
        assert (error.status, error.field, error.code) == (400, "n", "invalid_value")
        assert error.request_id
        with pytest.raises(NotFound) as caught:
            await collect(client.stream_complete("hi", model="other"))
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")
        with pytest.raises(Overloaded) as caught:
            await client.complete([PROMPT, PROMPT])
        assert (caught.value.status, caught.value.code) == (429, "router_full")
        assert caught.value.retry_after_s >= 1

    with_both(use, settings=RouterConfig(max_requests=1))


def test_without_a_replica_the_service_is_unavailable():
    async def use(client, chain):
        chain.router.update_members({})
        with pytest.raises(Unavailable) as caught:
            await client.complete(PROMPT)
        assert (caught.value.status, caught.value.code) == (503, "no_replica")
        assert not (await client.health()).ok

    with_both(use, settings=RouterConfig(wait_for_replica_s=0))


@kinds
def test_without_a_server_there_is_no_connection(kind):
    async def main():
        async with opened(kind, "http://127.0.0.1:1", retries=RetryPolicy(base_s=0)) as client:
            with pytest.raises(NotConnected):
                await client.models()

    asyncio.run(main())


@kinds
@pytest.mark.parametrize("leave", ["block", "other task"])
def test_closing_a_stream_ends_the_request_at_the_server(kind, leave):
    async def use(client, chain):
        stream = client.stream_complete(PROMPT, max_tokens=200)
        async with stream:
            first = await anext(stream)
            assert first.text
            if leave == "other task":
                waiting = asyncio.create_task(collect(stream))
                await until(lambda: chain.router.metrics.generated_tokens == 9)
                await stream.close()
                assert all(delta.finish_reason is None for delta in await waiting)
        await until(lambda: chain.router.metrics.ended["cancelled"] == 1)
        assert [delta async for delta in stream] == []

    with_client(kind, use, delay=Gate(9))


@pytest.mark.parametrize("streamed", [False, True])
def test_cancelling_the_task_ends_the_request_at_the_server(streamed):
    async def use(client, chain):
        async def ask():
            if not streamed:
                return await client.complete(PROMPT, max_tokens=200)
            stream = client.stream_complete(PROMPT, max_tokens=200)
            return [delta async for delta in stream]  # no block: cancelling is enough

        task = asyncio.create_task(ask())
        await until(lambda: chain.router.metrics.generated_tokens == 9)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: chain.router.metrics.ended["cancelled"] == 1)

    with_client("asyncio", use, delay=Gate(9))


@kinds
def test_a_call_ends_here_when_its_time_is_over_and_at_the_server_too(kind):
    async def use(client, chain):
        for ended, stream in enumerate((False, True), start=1):
            with pytest.raises(DeadlineExceeded) as caught:
                if stream:
                    await collect(client.stream_complete(PROMPT, max_tokens=200, timeout_s=0.1))
                else:
                    await client.complete(PROMPT, max_tokens=200)
            assert caught.value.request_id
            await until(lambda ended=ended: chain.router.metrics.ended["cancelled"] == ended)

    # Of two seats one is still taken when the second call comes.
    with_client(kind, use, client={"timeout_s": 0.1}, delay=Gate(9), max_sequences=2)


def test_the_server_hears_how_long_it_has_for_the_first_token():
    gate = Gate(0)

    async def use(client, chain):
        with pytest.raises(DeadlineExceeded) as caught:
            await client.complete(PROMPT, deadline_ms=50)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
        if isinstance(client, AsyncClient):
            gate.opened.set()

    with_both(use, delay=gate, max_sequences=2)
