"""Whatever becomes of requests, the recorder's counts are those of the metrics and the clients."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.errors import RequestError
from chairlift.cluster.protocol import Priority, Request, SamplingParams
from chairlift.cluster.telemetry import Tally
from chairlift.cluster.tenants import Tenant
from chairlift.router.ask import Ask
from chairlift.router.router import Router
from support.flights import BIG, read_all, router_for
from support.replicas import FakeReplica, eventually, fake_replica

NUM_REQUESTS = 80
SETTINGS = {"max_requests": 30, "max_moves": 1, "wait_for_replica_s": 60.0}


def wanted_of(number: int) -> Request:
    return Request(
        f"r{number}",
        tuple([number % 50 + 1] * (1 + number * 37 % 300)),
        SamplingParams(max_tokens=1 + number * 13 % 60, seed=number, min_tokens=1),
        n=1 + number % 3,
        tenant=f"t{number % 4}",
        priority=Priority(number % 3),
        weight=1.0 + number % 4,
    )


async def client(router: Router, number: int) -> tuple[str, int]:
    """What became of it, and how many tokens were read."""
    wanted = wanted_of(number)
    try:
        flight = router.submit(Ask(wanted, Tenant(wanted.tenant)))
        await flight.placed()
    except RequestError:
        return "rejected", 0
    except asyncio.CancelledError:
        return "cancelled", 0
    try:
        await read_all(flight)
    except RequestError:
        return "failed", flight.output_tokens
    except asyncio.CancelledError:
        return "cancelled", flight.output_tokens
    return "finished", flight.output_tokens


def summed(router: Router) -> Tally:
    total = Tally()
    for tally in router.reporter.report(-1).totals.values():
        total.merge(tally)
    return total


async def disturb(replicas: list[FakeReplica], chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.01, 0.1))
        chance.choice(replicas).cut()


@pytest.mark.parametrize("seed", range(2))
def test_every_request_and_token_is_counted_once(seed):
    chance = random.Random(seed)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = [
                await stack.enter_async_context(
                    fake_replica(**(BIG | {"max_sequences": 6}), replica_id=f"r{n}", step_s=0.001)
                )
                for n in range(2)
            ]
            router = await stack.enter_async_context(router_for(*replicas, **SETTINGS))
            disturbing = asyncio.create_task(disturb(replicas, chance))
            clients = []
            for number in range(NUM_REQUESTS):
                clients.append(asyncio.create_task(client(router, number)))
                if chance.random() < 0.3:
                    await asyncio.sleep(0.02)
                if chance.random() < 0.2:
                    chance.choice(clients).cancel()
            results = await asyncio.gather(*clients, return_exceptions=True)
            disturbing.cancel()
            await asyncio.wait([disturbing])
            # Those that were cancelled before they had begun never came to the router.
            told = [each for each in results if isinstance(each, tuple)]
            assert len(told) == router.metrics.started
            await eventually(lambda: summed(router).ended == len(told))
            total, ended = summed(router), Counter(outcome for outcome, _ in told)
            assert min(ended[each] for each in ("finished", "cancelled", "rejected")) > 0
            for outcome, number in router.metrics.ended.items():
                assert getattr(total, outcome.value) == number
            assert total.started == total.ended == sum(ended.values())
            assert total.finished == ended["finished"]
            assert total.rejected + total.cancelled == ended["rejected"] + ended["cancelled"]
            assert total.output_tokens == router.metrics.generated_tokens
            assert total.output_tokens >= sum(tokens for _, tokens in told)
            assert 0 <= total.on_time <= total.output_tokens
            assert total.met <= total.finished == total.duration.count == total.slowdown.count
            assert total.first_token.count <= total.queue_wait.count
            assert total.choices >= total.started
            report = router.reporter.report(-1)
            assert (report.open, report.open_age_s) == (0, 0.0)
            assert sum(report.reasons.values()) == total.failed + total.rejected
            places = Tally()
            for bucket in report.places.seconds.values():
                for tally in bucket.values():
                    places.merge(tally)
            assert places.started >= total.queue_wait.count
            assert places.finished == total.finished
            assert places.first_token.count == total.first_token.count
            for series, tally in router.reporter.report(-1).totals.items():
                assert tally.service >= 2 * tally.output_tokens, series

    asyncio.run(main())
