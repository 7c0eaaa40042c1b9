"""The official client against the whole chain: HTTP, router, gRPC, engine with a fake model."""

import asyncio
import gc
import threading
import time

import openai
import pytest
from openai import AsyncOpenAI

from chairlift.cluster.config import RouterConfig
from chairlift.workers.sequence import StepPlan
from support.asgi_client import until
from support.chain import Chain, expected_text, running_chain
from support.fake_tokenizer import BOS
from support.http_app import MODEL, USER

PROMPT = [1, 2, 3]
CHAT_PROMPT = list(b"user: hi\nassistant:")


def client(chain: Chain) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{chain.url}/v1", api_key="none", max_retries=0, timeout=30)


def with_client(use, **options) -> None:
    """Run ``use(client)`` against a chain, which must be idle afterwards.

    Where a stream is left early, the client leaves generators of the event loop to the garbage
    collector. It must not find them in the engine's thread, which cannot end them.
    """

    async def main():
        async with running_chain(**options) as chain:
            async with client(chain) as official:
                await use(official)
            gc.collect()
            await chain.until_idle()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_chat_says_what_the_model_says_in_one_piece_and_streamed():
    async def use(official):
        arguments = {"model": MODEL, "messages": [USER], "max_tokens": 20, "seed": 5}
        whole = await official.chat.completions.create(**arguments)
        assert whole.choices[0].message.content == expected_text(CHAT_PROMPT, 20, seed=5)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.prompt_tokens == len(CHAT_PROMPT)
        assert whole.usage.completion_tokens == 20
        chunks = [
            chunk
            async for chunk in await official.chat.completions.create(
                **arguments, stream=True, stream_options={"include_usage": True}
            )
        ]
        assert chunks[0].choices[0].delta.role == "assistant"
        joined = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
        assert joined == whole.choices[0].message.content
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        cached = [each.usage.prompt_tokens_details.cached_tokens for each in (whole, chunks[-1])]
        assert cached[0] == 0 < cached[1]  # the second one finds what the first has computed

    with_client(use)


def test_text_and_token_ids_are_one_prompt_and_choices_differ():
    async def use(official):
        arguments = {"model": MODEL, "max_tokens": 12, "seed": 7, "n": 3}
        by_text = await official.completions.create(prompt="abc", **arguments)
        by_ids = await official.completions.create(prompt=[BOS, *b"abc"], **arguments)
        said = [choice.text for choice in by_text.choices]
        assert said == [choice.text for choice in by_ids.choices]
        assert said == [
            expected_text([BOS, *b"abc"], 12, seed=7, choice=choice) for choice in range(3)
        ]
        assert len(set(said)) == 3
        assert by_text.usage.completion_tokens == 36

    with_client(use)


def test_a_list_of_prompts_is_answered_prompt_by_prompt_also_streamed():
    async def use(official):
        arguments = {
            "model": MODEL,
            "prompt": [[1], [2, 3]],
            "max_tokens": 8,
            "seed": 1,
            "n": 2,
        }
        expected = [
            expected_text(prompt, 8, seed=1, choice=choice)
            for prompt in ([1], [2, 3])
            for choice in range(2)
        ]
        whole = await official.completions.create(**arguments)
        assert [choice.text for choice in whole.choices] == expected
        joined = [""] * 4
        async for chunk in await official.completions.create(**arguments, stream=True):
            for choice in chunk.choices:
                joined[choice.index] += choice.text
        assert joined == expected

    with_client(use)


def test_a_stop_string_cuts_the_text_streamed_or_not():
    text = expected_text(PROMPT, 40, seed=3)
    stop = text[15:18]
    cut = text[: text.index(stop)]

    async def use(official):
        arguments = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "seed": 3}
        whole = await official.completions.create(**arguments, stop=stop)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (cut, "stop")
        stream = await official.completions.create(
            **arguments, stop=[stop], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.text for chunk in chunks for c in chunk.choices) == cut
        assert chunks[-1].usage == whole.usage

    with_client(use)


def test_the_model_is_found():
    async def use(official):
        assert [model.id async for model in official.models.list()] == [MODEL]
        assert (await official.models.retrieve(MODEL)).id == MODEL

    with_client(use)


def test_errors_are_the_clients_own_classes():
    async def use(official):
        with pytest.raises(openai.BadRequestError) as caught:
            await official.chat.completions.create(model=MODEL, messages=[USER], n=0)
        assert (caught.value.param, caught.value.type) == ("n", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as caught:
            await official.chat.completions.create(model=MODEL, messages=[USER], max_tokens=10**9)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as caught:
            await official.completions.create(model="other", prompt="hi")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await official.embeddings.create(model=MODEL, input="hi")

    with_client(use)


def test_too_many_requests_are_a_rate_limit_with_a_time_to_come_back():
    async def use(official):
        with pytest.raises(openai.RateLimitError) as caught:
            await official.completions.create(model=MODEL, prompt=[PROMPT, PROMPT])
        assert caught.value.code == "router_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1

    with_client(use, settings=RouterConfig(max_requests=1))


def test_without_a_replica_the_service_is_unavailable():
    async def main():
        async with running_chain(settings=RouterConfig(wait_for_replica_s=0)) as chain:
            chain.router.update_members({})
            async with client(chain) as official:
                with pytest.raises(openai.InternalServerError) as caught:
                    await official.completions.create(model=MODEL, prompt=PROMPT)
                assert (caught.value.status_code, caught.value.code) == (503, "no_replica")

    asyncio.run(main())


class Gate:
    """Lets the engine take ``steps`` steps, and no more until it is opened.

    From then on a step takes as long as a real one: a fake model without any cost would be done
    before a cancellation that is on its way.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taken = 0
        self._open = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        if self.taken >= self.steps:
            assert self._open.wait(30)
            time.sleep(0.01)
        self.taken += 1

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("steps", "requests"), [(0, 1), (0, 2), (9, 1)], ids=["no token yet", "queued", "mid-stream"]
)
def test_a_client_that_hangs_up_frees_its_seat_and_its_blocks(steps, requests, stream, caplog):
    async def main():
        gate = Gate(steps)
        async with running_chain(delay=gate, max_sequences=1) as chain, client(chain) as official:

            async def request(max_tokens: int):
                arguments = {"model": MODEL, "prompt": PROMPT, "max_tokens": max_tokens}
                answer = await official.completions.create(**arguments, stream=stream)
                if stream:
                    async for _ in answer:
                        pass

            metrics = chain.router.metrics
            hanging = [asyncio.create_task(request(200)) for _ in range(requests)]
            await until(lambda: chain.intake.num_open == requests)
            await until(lambda: metrics.generated_tokens == steps)
            for task in hanging:
                task.cancel()
            await until(lambda: metrics.ended["cancelled"] == requests)
            gate.open()
            await chain.until_idle()
            assert gate.taken < 200, "it ran to its end"
            await request(2)
            await chain.until_idle()

    asyncio.run(main())
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_many_clients_that_come_and_go_leave_nothing_behind():
    async def use(official):
        async def request(number: int) -> None:
            stream = await official.completions.create(
                model=MODEL, prompt=[number], max_tokens=50, n=1 + number % 3, stream=True
            )
            async for chunk in stream:
                if number % 2 and chunk.choices[0].text:
                    break
            await stream.close()

        await asyncio.gather(*(request(number) for number in range(40)))

    with_client(use, max_sequences=8, max_waiting=200)
