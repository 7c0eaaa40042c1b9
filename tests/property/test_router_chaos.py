"""Whatever happens to replicas and clients, each request ends once and no output is disturbed."""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import Overloaded, Unavailable
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Batching, Controls, Priority, Request, SamplingParams
from chairlift.cluster.tenants import Tenant
from chairlift.router.ask import Ask
from chairlift.router.router import Router
from support.flights import BIG, ended, expected, read_all, router_for
from support.replicas import FakeReplica, eventually, fake_replica

NUM_REQUESTS = 120
SETTINGS = {
    "wait_for_replica_s": 60.0,
    "moves_share": 1.0,
    "moves_floor": 10_000,
    "max_moves": 1000,
    "hedging": True,
}
"""Cuts are no deaths, so nothing stops a request from going on until it ends."""


def wanted_of(number: int) -> Request:
    return Request(
        f"r{number}",
        tuple([number % 50 + 1] * (1 + number * 7 % 80)),
        SamplingParams(max_tokens=1 + number * 13 % 60, seed=number, min_tokens=number % 2),
        n=1 + number % 3,
        tenant=f"t{number % 4}",
        priority=Priority(number % 3),
        weight=1.0 + number % 4,
    )


async def client(router: Router, number: int) -> str:
    wanted = wanted_of(number)
    text, _, _ = expected(wanted)
    stop = (text[len(text) // 2 :][:4],) if number % 5 == 0 and len(text) > 20 else ()
    try:
        flight = router.submit(Ask(wanted, Tenant(wanted.tenant), stop))
        await flight.placed()
        choices = await read_all(flight)
    except (Overloaded, Unavailable):
        return "rejected"
    for index, choice in enumerate(choices):
        text, num_tokens, finish = expected(wanted, index)
        if stop and stop[0] in text:
            assert (choice.text, choice.finish) == (text[: text.index(stop[0])], "stop")
        else:
            assert (choice.text, choice.num_tokens, choice.finish) == (text, num_tokens, finish)
    return "finished"


def controls_of(version: int, chance: random.Random) -> Controls:
    """Any that let everybody in."""
    return Controls(
        version,
        chance.choice(list(Batching)),
        token_budget=chance.randint(8, 64),
        max_sequences=chance.randint(1, 6),
        fair=chance.random() < 0.5,
        reserve=chance.random() < 0.5,
        hedging=chance.random() < 0.5,
        affinity=chance.random() < 0.5,
        demote_late=chance.random() < 0.5,
    )


async def disturb(router: Router, replicas: list[FakeReplica], chance: random.Random) -> None:
    """Cut streams, freeze reports, move the Guard, and let replicas leave and come back."""
    members = {each.info.replica_id: each.endpoint for each in replicas}
    for version in itertools.count(1):
        await asyncio.sleep(chance.uniform(0.005, 0.05))
        router.check_integrity()
        replica = chance.choice(replicas)
        match chance.randrange(5):
            case 0 | 1:
                replica.cut()
            case 2:
                replica.freeze()
            case 3:
                router.update_members(
                    {name: at for name, at in members.items() if name != replica.info.replica_id}
                )
                await asyncio.sleep(chance.uniform(0.0, 0.02))
                router.update_members(members)
            case 4:
                router.obey(GuardState(version, controls=controls_of(version, chance)))


@pytest.mark.parametrize("seed", range(3))
def test_no_output_is_disturbed_and_every_request_ends_once(seed):
    chance = random.Random(seed)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = [
                await stack.enter_async_context(
                    fake_replica(
                        **(BIG | {"max_sequences": 6, "blocks_total": 300}),
                        replica_id=f"r{number}",
                        step_s=0.001,
                    )
                )
                for number in range(3)
            ]
            router = await stack.enter_async_context(router_for(*replicas, **SETTINGS))
            disturbing = asyncio.create_task(disturb(router, replicas, chance))
            clients = []
            for number in range(NUM_REQUESTS):
                clients.append(asyncio.create_task(client(router, number)))
                if chance.random() < 0.3:
                    await asyncio.sleep(0.005)
                if chance.random() < 0.15:
                    chance.choice(clients).cancel()
            results = await asyncio.gather(*clients, return_exceptions=True)
            disturbing.cancel()
            (fault,) = await asyncio.gather(disturbing, return_exceptions=True)
            assert isinstance(fault, asyncio.CancelledError), fault
            faults = [
                each
                for each in results
                if isinstance(each, BaseException) and not isinstance(each, asyncio.CancelledError)
            ]
            assert not faults, faults
            counts = ended(router)
            assert set(counts) <= {"finished", "cancelled"}
            assert counts["finished"] == Counter(map(str, results))["finished"]
            assert sum(router.metrics.moved.values()) > 0
            router.check_integrity()
            await eventually(lambda: all(replica.idle for replica in replicas))

    asyncio.run(main())
