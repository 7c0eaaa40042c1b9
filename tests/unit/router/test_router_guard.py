"""What the Guard puts in force, in a router and at the real engines behind it."""

import asyncio
import functools
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import Overloaded
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Batching, Priority, Request, SamplingParams
from chairlift.router.ask import Ask
from chairlift.router.router import Router
from support.flights import BIG, ended, read_all, request, router_for, submit, with_router
from support.replicas import FakeReplica, controls_of, eventually, fake_replica


def state_of(replica: FakeReplica, version: int, **controls) -> GuardState:
    return GuardState(version, controls=controls_of(replica, version=version, **controls))


async def has(replica: FakeReplica, version: int) -> None:
    """Until Controls of this version are in force at the replica."""
    await eventually(lambda: replica.scheduler.controls.version == version)


def of(tenant: str = "t", priority: Priority = Priority.STANDARD) -> Ask:
    return Ask(Request("r", (1, 2), SamplingParams(max_tokens=3), tenant=tenant, priority=priority))


def refusal(router: Router, ask: Ask) -> str:
    with pytest.raises(Overloaded) as error:
        router.submit(ask)
    return error.value.code


def test_controls_reach_every_replica_and_older_ones_do_not():
    async def scenario(router, one, two):
        assert router.guard is None and router.reporter.report(-1).guard is None
        state = state_of(one, 5, batching=Batching.STATIC, token_budget=32, max_sequences=3)
        router.obey(state)
        for replica in (one, two):
            await has(replica, 5)
            assert replica.scheduler.controls == state.controls
        router.obey(state_of(one, 4))
        assert router.guard is state
        router.obey(state_of(one, 6, reserve=True))
        for replica in (one, two):
            await has(replica, 6)
        report = router.reporter.report(-1)
        assert (report.guard_version, report.guard) == (6, router.guard)
        report = router.reporter.report(0)
        assert (report.guard_version, report.guard) == (6, None)

    with_router(scenario, replicas=2)


def test_who_joins_or_starts_anew_is_told_too():
    async def main():
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(fake_replica(**BIG))
            router = await stack.enter_async_context(router_for(first))
            router.obey(state_of(first, 3, token_budget=16))
            await has(first, 3)
            second = await stack.enter_async_context(fake_replica(**BIG, replica_id="second"))
            members = {each.info.replica_id: each.endpoint for each in (first, second)}
            router.update_members(members)
            await has(second, 3)
            await first.server.stop(0)
            again = await stack.enter_async_context(fake_replica(**BIG))
            assert again.scheduler.controls.version == 0
            router.update_members(members | {again.info.replica_id: again.endpoint})
            await has(again, 3)
            await read_all(await submit(router, request()))

    asyncio.run(main())


def test_a_replica_that_was_out_of_reach_hears_the_newest_when_it_is_back():
    async def scenario(router, replica):
        router.obey(state_of(replica, 1))
        await has(replica, 1)
        replica.cut()
        await eventually(lambda: not router.replicas()[0].ready)
        router.obey(state_of(replica, 2))
        router.obey(state_of(replica, 3, token_budget=20))
        await has(replica, 3)
        assert replica.scheduler.controls.token_budget == 20

    with_router(scenario)


def test_refused_requests_end_once_and_are_counted_by_reason():
    async def scenario(router, replica):
        router.obey(state_of(replica, 1, lowest=Priority.STANDARD))
        assert refusal(router, of(priority=Priority.BATCH)) == "best_effort_refused"
        router.obey(state_of(replica, 2, lowest=Priority.STANDARD, admit=0.5))
        flights = [router.submit(of())]
        assert refusal(router, of()) == "admission_cut"
        flights += [router.submit(of()), router.submit(of("other"))]
        router.obey(state_of(replica, 3, admit=0.0))
        assert refusal(router, of()) == "service_stopping"
        for flight in flights:
            await read_all(flight)
        router.check_integrity()
        assert ended(router) == {"finished": 3, "rejected": 3}
        page = router.metrics.render()[0].decode()
        for code in ("best_effort_refused", "admission_cut", "service_stopping"):
            assert f'"{code}"' in page
        assert all(use.open_requests == 0 for use in router.share.uses(0.0).values())
        router.obey(state_of(replica, 4))
        await read_all(router.submit(of(priority=Priority.BATCH)))

    with_router(scenario)


def test_what_was_let_in_goes_on_elsewhere_whatever_the_gate_says():
    async def scenario(router, one, two):
        wanted = [request(max_tokens=200, seed=seed, n=2) for seed in range(6)]
        readers = [asyncio.create_task(read_all(await submit(router, each))) for each in wanted]
        await eventually(lambda: router.metrics.generated_tokens > 50)
        router.obey(state_of(one, 1, admit=0.0))
        one.cut()
        await asyncio.gather(*readers)
        assert sum(router.metrics.moved.values()) > 0
        assert ended(router) == {"finished": 6}

    with_router(scenario, replicas=2, step_s=0.002, router={"wait_for_replica_s": 30.0})


def test_with_fewer_seats_requests_wait_in_the_router():
    async def scenario(router, replica):
        router.obey(state_of(replica, 1, max_sequences=2))
        await has(replica, 1)
        replica.gate.close()
        flights = [router.submit(Ask(request(max_tokens=3))) for _ in range(8)]
        await eventually(lambda: replica.intake.num_open == 2)
        replica.gate.let_through(1)
        await eventually(lambda: replica.engine.load.running == 2)
        assert replica.intake.num_open == 2 and len(router._queue) == 6
        router.obey(state_of(replica, 2))
        await eventually(lambda: replica.intake.num_open == 4)
        replica.gate.open()
        for flight in flights:
            await read_all(flight)

    with_router(scenario, max_sequences=4, router={"look_ahead": 0})


def test_who_waits_too_long_goes_after_who_can_still_be_in_time():
    order: list[str] = []

    async def follow(router: Router, ask: Ask) -> None:
        flight = router.submit(ask)
        await flight.placed()
        order.append(ask.request.tenant)
        await read_all(flight)

    async def scenario(router, replica):
        replica.gate.close()
        holder = await submit(router, request(max_tokens=2))
        late = asyncio.create_task(follow(router, of("late", Priority.INTERACTIVE)))
        await eventually(lambda: router._queue.queued_of("late") == 1)
        router.obey(state_of(replica, 1, demote_late=True))
        standing = functools.partial(router._queue.ahead, Priority.BATCH, "new", 1.0)
        await eventually(lambda: standing(router._clock()) == (0, 0))
        fresh = asyncio.create_task(follow(router, of("fresh", Priority.BATCH)))
        await eventually(lambda: router._queue.queued_of("fresh") == 1)
        replica.gate.open()
        await asyncio.gather(read_all(holder), late, fresh)
        assert order == ["fresh", "late"]

    with_router(scenario, max_sequences=1, router={"look_ahead": 0, "promote_after_s": 600.0})


def test_under_a_cut_who_would_be_late_is_turned_away_at_the_door():
    """Its tenant's share would let it in: what stands before it is too much."""

    async def scenario(router, replica):
        replica.gate.close()
        flights = [await submit(router, request(max_tokens=2))]
        flights += [router.submit(of()) for _ in range(3)]
        now = router._clock()
        for second in range(8):  # one starts each second, as far as the router knows
            router._accounts.starts.started(now - 8.0 + second, 1, waiting=True)
        flights.append(router.submit(of("before")))
        router.obey(state_of(replica, 1, admit=0.99))
        assert refusal(router, of("newcomer")) == "admission_cut"
        router.obey(state_of(replica, 2))
        flights.append(router.submit(of("newcomer")))
        replica.gate.open()
        await asyncio.gather(*map(read_all, flights))
        assert ended(router) == {"finished": 6, "rejected": 1}

    with_router(scenario, max_sequences=1, router={"look_ahead": 0})
