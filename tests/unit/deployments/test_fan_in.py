import asyncio
from dataclasses import replace

import pytest

from chairlift.cluster.errors import Overloaded, ReplicaLost, Unavailable
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.deployments.fan_in import take_off
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_response import Api, Usage
from chairlift.router.flight import Update
from support.asgi_client import until
from support.fake_router import FakeRouter


def generation(prompts: int, n: int = 1) -> Generation:
    requests = tuple(
        Request("id", (prompt,) * (prompt + 1), SamplingParams(max_tokens=9), n=n)
        for prompt in range(prompts)
    )
    return Generation(Api.COMPLETION, requests, ("END",), stream=False, include_usage=False)


async def texts(router: FakeRouter, prompts: int, n: int = 1) -> tuple[dict[int, str], Usage]:
    """What each choice said; every choice must have ended once."""
    said: dict[int, str] = {}
    ended = []
    async with take_off(router, generation(prompts, n)) as flights:
        async with flights.turns() as turns:
            async for turn in turns:
                for update in turn:
                    choice = update.choice
                    assert choice not in ended
                    said[choice] = said.get(choice, "") + update.text
                    if update.finish:
                        ended.append(choice)
        usage = flights.usage
    assert sorted(ended) == list(range(prompts * n))
    return said, usage


@pytest.mark.parametrize(("prompts", "n"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_every_choice_is_told_whole_and_usage_is_the_sum(prompts, n):
    router = FakeRouter()
    said, usage = asyncio.run(texts(router, prompts, n))
    assert said == dict.fromkeys(range(prompts * n), "Hello world")
    assert usage == Usage(sum(range(1, prompts + 1)), 5 * prompts * n)
    assert [flight.ask.stop for flight in router.flights] == [("END",)] * prompts
    router.check_idle()


@pytest.mark.parametrize("mine", ["", "the client's"])
def test_prompts_share_one_trace(mine):
    class TracingRouter(FakeRouter):
        def submit(self, ask):
            flight = super().submit(ask)
            flight.request = replace(ask.request, traceparent=f"under {ask.request.traceparent!r}")
            return flight

    async def main():
        router, several = TracingRouter(), generation(3)
        requests = tuple(replace(each, traceparent=mine) for each in several.requests)
        async with take_off(router, replace(several, requests=requests)) as flights:
            assert flights.traceparent == f"under {mine!r}"
        asked = [flight.ask.request.traceparent for flight in router.flights]
        assert asked == [mine, *[mine or flights.traceparent] * 2]

    asyncio.run(main())


def test_choices_are_numbered_prompt_by_prompt():
    def script(request):
        return [
            [
                Update(choice, f"{request.prompt[0]}/{choice}", 1, "stop")
                for choice in range(request.n)
            ]
        ]

    said, _ = asyncio.run(texts(FakeRouter(script), 2, 3))
    assert said == {0: "0/0", 1: "0/1", 2: "0/2", 3: "1/0", 4: "1/1", 5: "1/2"}


def test_when_one_prompt_is_refused_those_before_it_are_cancelled():
    router = FakeRouter()

    def admission(request):
        if request.prompt[0] == 2:
            raise Overloaded("full")

    router.admission = admission
    with pytest.raises(Overloaded):
        asyncio.run(texts(router, 4))
    assert len(router.flights) == 2
    router.check_idle()


def test_prompts_wait_for_their_replicas_together_and_the_first_failure_ends_all():
    async def main():
        never, router = asyncio.Event(), FakeRouter()

        async def refuse_once_all_wait():
            await until(lambda: sum(flight.queued for flight in router.flights) == 3)
            raise Unavailable("nobody")

        def admission(request):
            return refuse_once_all_wait() if request.prompt[0] == 1 else never.wait()

        router.admission = admission
        with pytest.raises(Unavailable):
            async with take_off(router, generation(3)):
                pass
        router.check_idle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("prompts", [1, 3])
def test_a_failing_flight_fails_all_after_what_it_had_to_tell(prompts):
    async def main():
        forever = asyncio.Event()
        first = [Update(0, "Hello", 2, None)]
        router = FakeRouter(
            lambda request: [first, forever if request.prompt[0] else ReplicaLost("gone")]
        )
        said = []
        async with take_off(router, generation(prompts)) as flights:
            with pytest.raises(ReplicaLost):
                async with flights.turns() as turns:
                    async for turn in turns:
                        said += [update.choice for update in turn]
            assert asyncio.all_tasks() == {asyncio.current_task()}
        router.check_idle()
        return said

    assert 0 in asyncio.run(main())


def test_a_fault_of_ours_in_one_of_many_flights_is_passed_on_and_leaves_no_task():
    async def main():
        def script(request):
            yield [Update(0, "Hello", 2, None)]
            raise ZeroDivisionError

        async with take_off(FakeRouter(script), generation(3)) as flights:
            with pytest.raises(ZeroDivisionError):
                async with flights.turns() as turns:
                    async for _ in turns:
                        pass
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_reader_that_takes_its_time_holds_back_the_flights():
    """A slow client must not make the merged news pile up in memory."""

    async def main():
        turns_taken = []

        def script(request):
            for number in range(1000):
                turns_taken.append(number)
                yield [Update(0, "x", 1, "stop" if number == 999 else None)]

        async with take_off(FakeRouter(script), generation(2)) as flights:
            async with flights.turns() as turns:
                await anext(turns)
                for _ in range(100):
                    await asyncio.sleep(0)
                return len(turns_taken)

    assert asyncio.run(main()) < 20
