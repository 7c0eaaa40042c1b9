"""The router against real engines behind real streams."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import InvalidRequest, Overloaded, Unavailable
from chairlift.router.ask import Ask
from chairlift.router.metrics import Outcome
from chairlift.router.router import Router
from support.flights import BIG, ended, expected, read_all, request, router_for, submit, with_router
from support.replicas import FakeReplica, eventually, fake_replica


def view_of(router: Router, replica: FakeReplica):
    (view,) = (v for v in router.replicas() if v.replica_id == replica.info.replica_id)
    return view


def test_a_client_that_goes_before_the_answer_leaves_nothing_behind():
    async def scenario(router, replica):
        submits = [asyncio.create_task(submit(router, request(max_tokens=2000))) for _ in range(5)]
        await asyncio.sleep(0)  # each has sent its submission and waits
        assert router.metrics.open == 5
        for task in submits:
            task.cancel()
        await asyncio.wait(submits)
        assert ended(router) == {"cancelled": 5}
        await read_all(await submit(router, request()))

    with_router(scenario)


def test_the_least_loaded_replica_gets_the_next():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        flights = []
        for _ in range(10):
            flights.append(await submit(router, request(max_tokens=5)))
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
            flights = [await submit(elsewhere, request(max_tokens=5)) for _ in range(4)]
            one.gate.let_through(2)
            await eventually(lambda: view_of(router, one).load.running == 4)
            for _ in range(2):
                await read_all(await submit(router, request(max_tokens=5)))
            assert one.intake.num_open == 4
            one.gate.open()
            for flight in flights:
                await read_all(flight)

    with_router(scenario, replicas=2)


def test_a_full_service_says_when_to_try_again():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        flights = [await submit(router, request(max_tokens=2)) for _ in range(4)]
        assert (one.intake.num_open, two.intake.num_open) == (2, 2)
        with pytest.raises(Overloaded) as error:
            await submit(router, request())
        assert error.value.code == "queue_full"
        assert error.value.retry_after_s >= 1
        one.gate.open()
        two.gate.open()
        for flight in flights:
            await read_all(flight)
        assert ended(router) == {"finished": 4, "rejected": 1}

    settings = {"look_ahead": 1, "max_queued": 0}
    with_router(scenario, replicas=2, router=settings, max_sequences=1)


def test_what_one_replica_refuses_another_one_takes():
    async def scenario(router, one, two):
        one.intake.close()
        flights = [router.submit(Ask(request())) for _ in range(20)]
        for flight in flights:
            await read_all(flight)
        assert [view.ready for view in router.replicas()] == [False, True]
        assert ended(router) == {"finished": 20}

    with_router(scenario, replicas=2)


def test_a_replica_is_given_its_seats_and_a_little_more():
    """The rest waits in the router, where it can still go elsewhere."""

    async def scenario(router, replica):
        replica.gate.close()
        flights = [router.submit(Ask(request(max_tokens=3))) for _ in range(20)]
        await eventually(lambda: replica.intake.num_open == 4 + 2)
        replica.gate.let_through(1)
        await eventually(lambda: replica.engine.load.running == 4)
        assert replica.intake.num_open == 4 + 2
        replica.gate.open()
        for flight in flights:
            await read_all(flight)

    with_router(scenario, max_sequences=4, router={"look_ahead": 2})


def test_a_replica_that_has_no_room_after_all_gets_the_request_later():
    async def scenario(router, replica):
        replica.gate.close()
        async with router_for(replica, look_ahead=0) as elsewhere:
            theirs = [await submit(elsewhere, request(max_tokens=3)) for _ in range(2)]
            mine = [router.submit(Ask(request(max_tokens=3))) for _ in range(4)]
            replica.gate.open()
            for flight in theirs + mine:
                await read_all(flight)
        assert ended(router) == {"finished": 4}

    with_router(scenario, max_sequences=2, max_waiting=0, router={"look_ahead": 3})


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
            await submit(router, wanted)
        assert (error.value.param, error.value.code) == (param, code)
        assert ended(router) == {"rejected": 1}

    with_router(scenario)


def test_the_number_of_open_requests_is_bounded():
    async def scenario(router, replica):
        replica.gate.close()
        flights = [await submit(router, request()) for _ in range(3)]
        with pytest.raises(Overloaded) as error:
            await submit(router, request())
        assert error.value.code == "router_full"
        assert error.value.retry_after_s >= 1
        replica.gate.open()
        for flight in flights:
            await read_all(flight)
        await read_all(await submit(router, request()))

    with_router(scenario, router={"max_requests": 3})


def test_without_members_nothing_is_available():
    async def main():
        async with router_for() as router:
            assert router.max_sequence_tokens is None
            with pytest.raises(Unavailable) as error:
                await submit(router, request())
            assert error.value.code == "no_replica"

    asyncio.run(main())


def test_a_member_that_leaves_finishes_what_it_runs():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        wanted = request(max_tokens=20)
        flight = await submit(router, wanted)
        other = two if one.intake.num_open else one
        router.update_members({other.info.replica_id: other.endpoint})
        later = await submit(router, wanted)
        assert other.intake.num_open == 1
        one.gate.open()
        two.gate.open()
        for each in (flight, later):
            (choice,) = await read_all(each)
            assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted)
        await eventually(lambda: not router.members.retiring)

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
            await read_all(await submit(router, request()))

    asyncio.run(main())


def test_close_ends_everything_once():
    async def scenario(router, replica):
        replica.gate.close()
        flights = [await submit(router, request(max_tokens=100)) for _ in range(3)]
        readers = [asyncio.create_task(read_all(flight)) for flight in flights]
        submits = [asyncio.create_task(submit(router, request())) for _ in range(3)]
        await asyncio.sleep(0)
        await router.close()
        results = await asyncio.gather(*readers, *submits, return_exceptions=True)
        assert {(type(r), r.code) for r in results} == {(Unavailable, "shutting_down")}
        with pytest.raises(Unavailable):
            await submit(router, request())
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
            async with await submit(router, wanted) as flight:
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
