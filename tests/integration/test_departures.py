"""Clients that leave, at every stage of their request: nothing of them stays behind."""

import asyncio
import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.flights import ended, with_router
from support.http_front import http_front
from support.replicas import eventually

DEPARTURES = 200
AT_ONCE = 20

ROUNDS = DEPARTURES // AT_ONCE


def body(
    prompt_tokens: int = 3, max_tokens: int = 1000, first: int = 5, **fields
) -> dict[str, object]:
    prompt = [first + token for token in range(prompt_tokens)]
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def read_first(session, url: str, wanted: dict[str, object]) -> None:
    """Reads the first event of a stream, and stays."""
    async with session.post(url, json=wanted) as response:
        assert response.status == 200
        await response.content.readline()
        await asyncio.Event().wait()


async def read_whole(session, url: str, wanted: dict[str, object]) -> int:
    async with session.post(url, json=wanted) as response:
        await response.read()
        return response.status


async def leave(*clients: asyncio.Task) -> None:
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def idle(router, replica) -> None:
    """Within the two seconds that are promised on a quiet machine, and some grace."""
    await eventually(lambda: router.metrics.open == 0 and replica.idle)
    router.check_integrity()


async def all_decode(router) -> None:
    """All of a round have come, and get tokens."""
    await eventually(lambda: router.metrics.open == AT_ONCE)
    enough = router.metrics.generated_tokens + 3 * AT_ONCE
    await eventually(lambda: router.metrics.generated_tokens > enough)


async def is_alive(session, url: str) -> None:
    assert await read_whole(session, url, body(max_tokens=2)) == 200


def test_those_who_leave_while_queued_leave_nothing():
    async def scenario(router, replica):
        async with http_front(router) as (session, url):
            replica.gate.close()
            seated = [asyncio.create_task(read_whole(session, url, body())) for _ in range(6)]
            await eventually(lambda: replica.intake.num_open == 6)
            for _ in range(ROUNDS):
                queued = [
                    asyncio.create_task(read_whole(session, url, body(stream=bool(i % 2))))
                    for i in range(AT_ONCE)
                ]
                await eventually(lambda: router.metrics.open == 6 + AT_ONCE)
                assert replica.intake.num_open == 6
                await leave(*queued)
                await eventually(lambda: router.metrics.open == 6)
            replica.gate.open()
            await leave(*seated)
            await idle(router, replica)
            await is_alive(session, url)
            assert ended(router) == {"cancelled": DEPARTURES + 6, "finished": 1}

    with_router(scenario, max_sequences=4)


def test_those_who_leave_in_mid_prompt_leave_nothing():
    async def scenario(router, replica):
        async with http_front(router) as (session, url):
            for i in range(DEPARTURES):
                replica.gate.close()
                wanted = body(200, first=5 + 200 * i)  # none of it is cached
                client = asyncio.create_task(read_whole(session, url, wanted))
                await eventually(lambda: replica.intake.num_open == 1)
                replica.gate.let_through()
                await eventually(lambda: replica.engine.load.blocks_used > 0)
                assert router.metrics.generated_tokens == 0
                await leave(client)
                replica.gate.open()
                await idle(router, replica)
            assert ended(router) == {"cancelled": DEPARTURES}
            await is_alive(session, url)

    with_router(scenario, token_budget=64)


def test_those_who_leave_in_mid_answer_leave_nothing():
    async def scenario(router, replica):
        async with http_front(router) as (session, url):
            for _ in range(ROUNDS):
                clients = [
                    asyncio.create_task(read_first(session, url, body(stream=True)))
                    for _ in range(AT_ONCE)
                ]
                await all_decode(router)
                await leave(*clients)
                await idle(router, replica)
            assert ended(router) == {"cancelled": DEPARTURES}
            await is_alive(session, url)

    with_router(scenario, step_s=0.005)


def test_those_who_leave_without_having_streamed_leave_nothing():
    async def scenario(router, replica):
        async with http_front(router) as (session, url):
            for _ in range(ROUNDS):
                clients = [
                    asyncio.create_task(read_whole(session, url, body(n=1 + i % 3)))
                    for i in range(AT_ONCE)
                ]
                await all_decode(router)
                await leave(*clients)
                await idle(router, replica)
            assert ended(router) == {"cancelled": DEPARTURES}
            await is_alive(session, url)

    with_router(scenario, step_s=0.005)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_accounted_for_while_clients_leave_and_a_replica_flaps(seed):
    rng = random.Random(seed)

    async def come_and_go(session, url: str) -> int | None:
        wanted = body(
            rng.randint(1, 150),
            rng.randint(1, 60),
            stream=rng.random() < 0.5,
            n=rng.choice([1, 1, 3]),
            seed=rng.getrandbits(31),
        )
        leaves, after_s = rng.random() < 0.5, rng.uniform(0.0, 0.3)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        try:
            async with asyncio.timeout(after_s if leaves else None):
                return await read_whole(session, url, wanted)
        except TimeoutError:
            return None

    async def scenario(router, steady, flapping):
        async with http_front(router) as (session, url):
            clients = [asyncio.create_task(come_and_go(session, url)) for _ in range(100)]
            for _ in range(10):
                await asyncio.sleep(0.05)
                flapping.cut()
                no_counter_is_negative(router)
            statuses = await asyncio.gather(*clients)
            await idle(router, steady)
            await eventually(lambda: flapping.idle)
        left, outcomes = statuses.count(None), ended(router)
        assert sum(outcomes.values()) == router.metrics.started
        assert outcomes["finished"] >= 100 - left - outcomes.get("failed", 0)
        no_counter_is_negative(router)

    with_router(scenario, replicas=2, step_s=0.003, router={"wait_for_replica_s": 10.0})


def no_counter_is_negative(router) -> None:
    page, _ = router.metrics.render()
    samples = [
        sample
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    ]
    assert samples
    assert [sample for sample in samples if sample.value < 0] == []
