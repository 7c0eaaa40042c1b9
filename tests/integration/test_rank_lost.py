"""A rank is lost in the middle of streams: they go on at another replica, token by token."""

import asyncio

import pytest

from chairlift.cluster.config import RouterConfig, load_config
from chairlift.router.metrics import Move
from chairlift.router.router import Router
from support.flights import QUICK, embedded_tokenizer, ended, read_all, request, submit
from support.rank_replicas import needs_shared_memory, two_rank_replica
from support.replicas import eventually

pytestmark = [pytest.mark.integration, needs_shared_memory]


def test_what_a_replica_runs_that_loses_a_rank_goes_on_elsewhere():
    settings = {
        "engine.simulated_step_ms": 5.0,
        "engine.kv_memory": "64MiB",
        "workers.tensor_parallel": 2,
        "ledger.enabled": False,
    }
    config = load_config(overrides=settings, environment={})
    wanted = [request((1, seed), max_tokens=100, seed=seed) for seed in range(8)]

    async def ask(router: Router) -> list[str]:
        flights = [await submit(router, each) for each in wanted]
        return [(await read_all(flight))[0].text for flight in flights]

    async def main() -> None:
        async with two_rank_replica(config, "one") as one, two_rank_replica(config, "two") as two:
            router = Router(embedded_tokenizer(), RouterConfig(), timing=QUICK)
            router.update_members({each.replica_id: each.endpoint for each in (one, two)})
            await eventually(lambda: all(view.ready for view in router.replicas()))
            try:
                calm = await ask(router)
                asked = asyncio.create_task(ask(router))
                await eventually(lambda: all(v.load.running for v in router.replicas()))
                one.lose(rank=1)
                assert await asked == calm
                assert router.metrics.moved[Move.DRAINED] > 0
                assert ended(router) == {"finished": 16}
                router.check_integrity()
            finally:
                await router.close()

    asyncio.run(main())
