"""What waits, where it goes, and what comes back, with real engines behind real streams."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import (
    DeadlineExceeded,
    Overloaded,
    RateLimited,
    ReplicaLost,
    Unavailable,
)
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Priority, Request, SamplingParams
from chairlift.cluster.tenants import Tenant
from chairlift.router.ask import Ask
from chairlift.router.metrics import Move
from chairlift.router.router import Router
from support.flights import BIG, ended, expected, read_all, request, router_for, submit, with_router
from support.replicas import controls_of, eventually, fake_replica


def of(tenant: str, priority: Priority = Priority.INTERACTIVE, **terms) -> Ask:
    sampling = SamplingParams(max_tokens=4)
    wanted = Request(f"of {tenant}", (1, 2, 3), sampling, tenant=tenant, priority=priority)
    return Ask(wanted, terms.pop("limits", Tenant(tenant)), **terms)


async def follow(router: Router, ask: Ask, order: list[str]) -> None:
    """Read it to its end; ``order`` gets its tenant when a replica has taken it."""
    flight = router.submit(ask)
    await flight.placed()
    order.append(ask.request.tenant)
    await read_all(flight)


def test_a_draining_replica_hands_over_and_no_reader_notices():
    async def scenario(router, one, two):
        wanted = [request(max_tokens=300, seed=seed, n=1 + seed % 3) for seed in range(10)]
        flights = [await submit(router, each) for each in wanted]
        readers = [asyncio.create_task(read_all(flight)) for flight in flights]
        await eventually(lambda: router.metrics.generated_tokens > 100)
        assert one.intake.num_open
        await one.drain()
        for each, reader in zip(wanted, readers, strict=True):
            for index, choice in enumerate(await reader):
                assert (choice.text, choice.num_tokens, choice.finish) == expected(each, index)
        assert one.idle
        assert router.metrics.moved[Move.DRAINED] > 0 == router.metrics.moved[Move.LOST]
        assert [view.ready for view in router.replicas()] == [False, True]
        assert ended(router) == {"finished": 10}

    with_router(scenario, replicas=2, step_s=0.002)


def test_what_has_begun_waits_for_a_replacement_and_goes_on_there():
    async def main():
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(fake_replica(**BIG, step_s=0.002))
            router = await stack.enter_async_context(router_for(first, wait_for_replica_s=30.0))
            wanted = request(max_tokens=100, n=2)
            reader = asyncio.create_task(read_all(await submit(router, wanted)))
            await eventually(lambda: router.metrics.generated_tokens > 10)
            router.update_members({})
            await first.server.stop(0)
            late = asyncio.create_task(submit(router, request()))
            await eventually(lambda: len(router._queue) == 3)
            second = await stack.enter_async_context(fake_replica(**BIG, replica_id="second"))
            router.update_members({second.info.replica_id: second.endpoint})
            for index, choice in enumerate(await reader):
                assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted, index)
            await read_all(await late)
            assert ended(router) == {"finished": 2}

    asyncio.run(main())


def test_without_a_replacement_all_end_clearly():
    async def scenario(router, replica):
        replica.gate.close()
        running = await submit(router, request(max_tokens=100))
        replica.gate.let_through(1)
        await eventually(lambda: running.first_token_at is not None)
        router.update_members({})
        await replica.server.stop(0)
        replica.gate.open()
        with pytest.raises(Unavailable) as error:
            await submit(router, request())
        assert error.value.code == "no_replica"
        with pytest.raises(ReplicaLost):
            await read_all(running)
        assert ended(router) == {"failed": 1, "rejected": 1}

    with_router(scenario, router={"wait_for_replica_s": 0.2})


def test_who_wakes_replicas_that_have_long_slept_is_waited_for_too():
    async def scenario(router, replica):
        router.may_sleep = True
        members = {view.replica_id: replica.endpoint for view in router.replicas()}
        router.update_members({})
        await asyncio.sleep(1.2)  # longer than anybody would be waited for
        waking = asyncio.create_task(submit(router, request()))
        await asyncio.sleep(0.25)  # so that it is looked at
        router.update_members(members)
        await read_all(await waking)
        assert ended(router) == {"finished": 1}

    with_router(scenario, router={"wait_for_replica_s": 1.0})


def test_a_higher_class_goes_before_what_waits_longer():
    async def scenario(router, replica):
        replica.gate.close()
        order = []
        asks = [
            of("seated"),
            of("slow", Priority.BATCH),
            of("normal", Priority.STANDARD),
            of("now"),
        ]
        tasks = []
        for ask in asks:
            tasks.append(asyncio.create_task(follow(router, ask, order)))
            await asyncio.sleep(0)
        await eventually(lambda: order == ["seated"])
        replica.gate.open()
        await asyncio.gather(*tasks)
        assert order == ["seated", "now", "normal", "slow"]

    with_router(scenario, max_sequences=1, router={"look_ahead": 0})


def test_who_had_less_goes_before_who_came_first():
    async def scenario(router, replica):
        replica.gate.close()
        order = []
        tasks = [asyncio.create_task(follow(router, of("greedy"), order)) for _ in range(6)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(follow(router, of("modest"), order)))
        await eventually(lambda: len(order) == 1)
        replica.gate.open()
        await asyncio.gather(*tasks)
        assert order.index("modest") <= 2

    with_router(scenario, max_sequences=1, router={"look_ahead": 0})


def test_a_flood_in_a_replicas_line_is_overtaken_there():
    """Guards against a tenant that waits here until another one's look-ahead has been served."""

    async def scenario(router, replica):
        replica.gate.close()
        flood = [router.submit(of("greedy")) for _ in range(20)]
        await eventually(lambda: replica.intake.num_open == 2 + 2)
        replica.gate.let_through(1)
        await eventually(lambda: replica.engine.load.running == 2)
        modest = router.submit(of("modest"))
        await modest.placed()
        assert replica.intake.num_open == 2 + 2 + 1
        while modest.first_token_at is None:
            step = replica.engine.load.step
            replica.gate.let_through(1)
            await eventually(lambda step=step: replica.engine.load.step > step)
            await asyncio.sleep(0.01)
        assert sum(flight.first_token_at is not None for flight in flood) <= 2 + 1
        replica.gate.open()
        for flight in [modest, *flood]:
            await read_all(flight)

    with_router(scenario, max_sequences=2, router={"look_ahead": 2})


def test_who_waits_past_the_deadline_is_turned_away():
    async def scenario(router, replica):
        replica.gate.close()
        seated = await submit(router, request())
        waiting = router.submit(of("a", deadline_s=0.2))
        with pytest.raises(DeadlineExceeded):
            await waiting.placed()
        replica.gate.open()
        await read_all(seated)
        assert ended(router) == {"finished": 1, "rejected": 1}

    with_router(scenario, max_sequences=1, router={"look_ahead": 0})


def test_who_has_a_seat_but_no_token_at_the_deadline_fails_and_frees_it():
    async def scenario(router, replica):
        replica.gate.close()
        flight = router.submit(of("a", deadline_s=0.2))
        await flight.placed()
        with pytest.raises(DeadlineExceeded):
            await read_all(flight)
        replica.gate.open()
        await eventually(lambda: replica.idle)
        assert ended(router) == {"failed": 1}

    with_router(scenario)


def test_a_tenants_limits_are_its_own():
    async def scenario(router, replica):
        replica.gate.close()
        few = Tenant("few", max_requests=1)
        first = router.submit(of("few", limits=few))
        await first.placed()
        with pytest.raises(RateLimited) as error:
            router.submit(of("few", limits=few))
        assert error.value.code == "tenant_requests"
        other = router.submit(of("other"))
        await other.placed()
        replica.gate.open()
        for flight in (first, other):
            await read_all(flight)
        await read_all(router.submit(of("few", limits=few)))
        assert ended(router) == {"finished": 3, "rejected": 1}

    with_router(scenario)


def test_the_queue_is_bounded_in_tokens():
    async def scenario(router, replica):
        replica.gate.close()
        flights = [await submit(router, request())]
        flights.append(router.submit(Ask(request([1] * 60))))
        with pytest.raises(Overloaded) as error:
            router.submit(Ask(request([1] * 60)))
        assert error.value.code == "queue_tokens"
        replica.gate.open()
        for flight in flights:
            await read_all(flight)

    settings = {"look_ahead": 0, "max_queued_tokens": 100}
    with_router(scenario, max_sequences=1, router=settings)


def test_what_does_not_start_in_the_usual_time_is_moved():
    async def scenario(router, one, two):
        for seed in range(60):  # to know what is usual
            await read_all(await submit(router, request(max_tokens=1, seed=seed)))
        one.gate.close()
        two.gate.close()
        wanted = request(max_tokens=20)
        flight = await submit(router, wanted)
        other = two if one.intake.num_open else one
        other.gate.open()
        (choice,) = await read_all(flight)
        assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted)
        assert router.metrics.moved[Move.HEDGED] == 1
        for replica in (one, two):
            replica.gate.open()
        assert ended(router) == {"finished": 61}

    with_router(scenario, replicas=2, router={"hedging": True})


def test_what_does_not_start_stays_where_it_is_while_the_guard_forbids_hedging():
    async def scenario(router, one, two):
        for seed in range(60):  # to know what is usual
            await read_all(await submit(router, request(max_tokens=1, seed=seed)))
        router.obey(GuardState(1, controls=controls_of(one, version=1, hedging=False)))
        for replica in (one, two):
            await eventually(lambda r=replica: r.scheduler.controls.version == 1)
        one.gate.close()
        two.gate.close()
        flight = await submit(router, request(max_tokens=20))
        home, other = (one, two) if one.intake.num_open else (two, one)
        other.gate.open()
        sent_at = router._clock()
        await eventually(lambda: router._clock() - sent_at > 0.5)
        assert home.intake.num_open == 1 and router.metrics.moved[Move.HEDGED] == 0
        router.obey(GuardState(2, controls=controls_of(one, version=2)))
        await read_all(flight)
        assert router.metrics.moved[Move.HEDGED] == 1
        home.gate.open()

    with_router(scenario, replicas=2, router={"hedging": True})


@pytest.mark.parametrize("frozen", [1, 2])
def test_service_goes_on_when_load_reports_do_not(frozen):
    async def scenario(router, *replicas):
        for replica in replicas[:frozen]:
            replica.freeze()
        await eventually(lambda: sum(view.load_age_s > 1.0 for view in router.replicas()) == frozen)
        flights = [router.submit(Ask(request(max_tokens=20, seed=seed))) for seed in range(60)]
        for seed, flight in enumerate(flights):
            (choice,) = await read_all(flight)
            assert (choice.text, choice.num_tokens, choice.finish) == expected(
                request(max_tokens=20, seed=seed)
            )
            assert all(replica.engine.load.running <= 4 for replica in replicas)
        assert ended(router) == {"finished": 60}

    with_router(scenario, replicas=2, max_sequences=4)
