"""The router against real engines behind real streams."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import InvalidRequest, Overloaded, Unavailable
from chairlift.router.metrics import Outcome
from chairlift.router.router import Router
from support.flights import BIG, ended, expected, read_all, request, router_for, with_router
from support.replicas import FakeReplica, eventually, fake_replica


def view_of(router: Router, replica: FakeReplica):
    (view,) = (v for v in router.replicas() if v.replica_id == replica.info.replica_id)
    return view


def test_a_client_that_goes_before_the_answer_leaves_nothing_behind():
    async def scenario(router, replica):
        submits = [asyncio.create_task(router.submit(request(max_tokens=2000))) for _ in range(5)]
        await asyncio.sleep(0)  # each has sent its submission and waits
        assert router.metrics.open == 5
        for task in submits:
            task.cancel()
        await asyncio.wait(submits)
        assert ended(router) == {"cancelled": 5}
        await read_all(await router.submit(request()))

    with_router(scenario)


def test_the_least_loaded_replica_gets_the_next():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        flights = []
        for _ in range(10):
            flights.append(await router.submit(request(max_tokens=5)))
        # A report that is just on its way may hide one request, or show it twice.
        assert sorted([one.intake.num_open, two.intake.num_open]) in ([5, 5], [4, 6])
        for replica in (one, two):
            replica.gate.open()
        for flight in flights:
            await read_all(flight)

    with_router(scenario, replicas=2)


def test_load_from_elsewhere_counts():
    async def scenario(router, one, two):
        one.gate.close()
        async with router_for(one) as elsewhere:
            flights = [await elsewhere.submit(request(max_tokens=5)) for _ in range(4)]
            one.gate.let_through(2)
            await eventually(lambda: view_of(router, one).load.running == 4)
            for _ in range(2):
                await read_all(await router.submit(request(max_tokens=5)))
            assert one.intake.num_open == 4
            one.gate.open()
            for flight in flights:
                await read_all(flight)

    with_router(scenario, replicas=2)


def test_a_refused_request_goes_to_the_next_replica():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        flights = [await router.submit(request(max_tokens=2)) for _ in range(4)]
        assert (one.intake.num_open, two.intake.num_open) == (2, 2)  # both are full
        with pytest.raises(Overloaded) as error:
            await router.submit(request())
        assert error.value.code == "queue_full"
        assert error.value.retry_after_s >= 1
        one.intake.close()
        with pytest.raises(Overloaded):
            await router.submit(request())
        one.gate.open()
        two.gate.open()
        for flight in flights:
            await read_all(flight)
        await read_all(await router.submit(request()))  # wherever it goes first, two takes it
        assert ended(router) == {"finished": 5, "rejected": 2}

    with_router(scenario, replicas=2, max_sequences=1, max_waiting=1)


def test_draining_replicas_are_not_available():
    async def scenario(router, replica):
        replica.intake.close()
        with pytest.raises(Unavailable):
            await router.submit(request())

    with_router(scenario)


@pytest.mark.parametrize(
    ("wanted", "param", "code"),
    [
        (request([1] * 5000), "prompt", "context_length_exceeded"),
        (request(max_tokens=5000), "max_tokens", "context_length_exceeded"),
        (request((10**6,)), "prompt", "invalid_value"),
    ],
    ids=["prompt too long", "output too long", "unknown token"],
)
def test_what_the_replica_finds_fault_with_names_the_field(wanted, param, code):
    async def scenario(router, replica):
        with pytest.raises(InvalidRequest) as error:
            await router.submit(wanted)
        assert (error.value.param, error.value.code) == (param, code)
        assert ended(router) == {"rejected": 1}

    with_router(scenario)


def test_the_number_of_open_requests_is_bounded():
    async def scenario(router, replica):
        replica.gate.close()
        flights = [await router.submit(request()) for _ in range(3)]
        with pytest.raises(Overloaded) as error:
            await router.submit(request())
        assert error.value.code == "router_full"
        assert error.value.retry_after_s >= 1
        replica.gate.open()
        for flight in flights:
            await read_all(flight)
        await read_all(await router.submit(request()))

    with_router(scenario, router={"max_requests": 3})


def test_without_members_nothing_is_available():
    async def main():
        async with router_for() as router:
            assert router.max_sequence_tokens is None
            with pytest.raises(Unavailable) as error:
                await router.submit(request())
            assert error.value.code == "no_replica"

    asyncio.run(main())


def test_a_member_that_leaves_finishes_what_it_runs():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        wanted = request(max_tokens=20)
        flight = await router.submit(wanted)
        other = two if one.intake.num_open else one
        router.update_members({other.info.replica_id: other.endpoint})
        later = await router.submit(wanted)
        assert other.intake.num_open == 1
        one.gate.open()
        two.gate.open()
        for each in (flight, later):
            (choice,) = await read_all(each)
            assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted)
        await eventually(lambda: not router._retiring)

    with_router(scenario, replicas=2)


def test_a_replica_that_returns_is_used_again():
    async def main():
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(fake_replica(**BIG))
            router = await stack.enter_async_context(router_for(first))
            await first.server.stop(0)
            await eventually(lambda: not router.replicas()[0].ready)
            second = await stack.enter_async_context(fake_replica(**BIG))
            router.update_members({second.info.replica_id: second.endpoint})
            await eventually(lambda: router.replicas()[0].ready)
            await read_all(await router.submit(request()))

    asyncio.run(main())


def test_close_ends_everything_once():
    async def scenario(router, replica):
        replica.gate.close()
        flights = [await router.submit(request(max_tokens=100)) for _ in range(3)]
        readers = [asyncio.create_task(read_all(flight)) for flight in flights]
        submits = [asyncio.create_task(router.submit(request())) for _ in range(3)]
        await asyncio.sleep(0)
        await router.close()
        results = await asyncio.gather(*readers, *submits, return_exceptions=True)
        assert {(type(r), r.code) for r in results} == {(Unavailable, "shutting_down")}
        with pytest.raises(Unavailable):
            await router.submit(request())
        router.check_integrity()
        assert ended(router) == {"cancelled": 6, "rejected": 1}
        replica.gate.open()
        await eventually(lambda: replica.idle)

    with_router(scenario)


def test_a_flood_with_random_cancellations_ends_each_request_once():
    chance = random.Random(7)

    async def client(router: Router, number: int) -> str:
        wanted = request(
            [number % 50 + 1] * (1 + number % 40),
            n=1 + number % 3,
            max_tokens=1 + number % 30,
            seed=number,
        )
        patience = chance.choice([None, 0, 1, 5])
        try:
            async with await router.submit(wanted) as flight:
                if patience is None:
                    choices = await read_all(flight)
                    for index, choice in enumerate(choices):
                        assert (choice.text, choice.num_tokens, choice.finish) == expected(
                            wanted, index
                        )
                for _ in range(patience or 0):
                    await anext(flight)
        except Overloaded:
            return "rejected"
        except StopAsyncIteration:
            pass
        return flight.outcome.value

    async def scenario(router, one, two):
        tasks = [asyncio.create_task(client(router, number)) for number in range(200)]
        doomed = [task for task in tasks if chance.random() < 0.2]
        for step in range(20):
            await asyncio.sleep(0.001)
            router.check_integrity()
            for task in doomed[step::20]:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        faults = [r for r in results if isinstance(r, Exception)]
        assert not faults
        told = [r for r in results if isinstance(r, str)]
        counts = router.metrics.ended
        assert router.metrics.started == sum(counts.values()) <= 200
        assert counts[Outcome.FINISHED] == told.count("finished")
        assert counts[Outcome.FAILED] == 0
        assert counts[Outcome.REJECTED] >= told.count("rejected")
        router.check_integrity()

    with_router(scenario, replicas=2, blocks_total=200, max_sequences=8, max_waiting=100)
