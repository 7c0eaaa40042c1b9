"""Quantiles of the cluster are those of all requests of all routers, within one percent."""

import asyncio
import math
import random
from contextlib import AsyncExitStack

import pytest

from chairlift.cluster.figures import FiguresSettings, Targets, figures
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.cluster.sketch import ACCURACY
from chairlift.cluster.windows import Fold
from chairlift.router.ask import Ask
from chairlift.router.router import Router
from support.flights import BIG, read_all, router_for
from support.replicas import eventually, fake_replica

NUM_REQUESTS, ROUTERS, REPLICAS = 150, 2, 3
SETTINGS = FiguresSettings(Targets(1.0, 0.1))


async def client(router: Router, number: int) -> float:
    """The exact time to its first token, by the router's clock."""
    sampling = SamplingParams(max_tokens=2 + number % 20, seed=number, ignore_eos=True)
    request = Request(f"r{number}", (1,) * (1 + number % 90), sampling, tenant=f"t{number % 3}")
    flight = router.submit(Ask(request))
    await flight.placed()
    await read_all(flight)
    assert flight.record.first_token_s is not None
    return flight.record.first_token_s


def test_merged_first_token_times_are_those_of_the_raw_records():
    chance = random.Random(1)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = [
                await stack.enter_async_context(
                    fake_replica(
                        **(BIG | {"max_sequences": 4}), replica_id=f"r{n}", step_s=0.001 * (n + 1)
                    )
                )
                for n in range(REPLICAS)
            ]
            routers = [
                await stack.enter_async_context(router_for(*replicas)) for _ in range(ROUTERS)
            ]
            clients = []
            for number in range(NUM_REQUESTS):
                clients.append(asyncio.create_task(client(chance.choice(routers), number)))
                if chance.random() < 0.2:
                    await asyncio.sleep(0.01)
            exact = sorted(await asyncio.gather(*clients))
            fold = Fold()

            def told() -> int:
                for router in routers:
                    fold.put(router.reporter.report(-1), 0.0)
                return sum(tally.finished for tally in fold.totals().values())

            await eventually(lambda: told() == NUM_REQUESTS)
            seconds = [router.reporter.report(-1).seconds for router in routers]
            window = figures(fold, SETTINGS, max(map(max, seconds)) + 2.0).windows["1m"]
            assert window.all.finished == NUM_REQUESTS
            for share, merged in ((0.5, window.all.ttft_s.p50),
                                  (0.95, window.all.ttft_s.p95),
                                  (0.99, window.all.ttft_s.p99)):  # fmt: skip
                raw = exact[math.floor(share * (NUM_REQUESTS - 1))]
                assert merged == pytest.approx(raw, rel=ACCURACY * 1.001)

    asyncio.run(main())
