"""Bursts over several routers and replicas, and replicas that leave in the middle of one."""

import asyncio
from contextlib import AsyncExitStack

from support.flights import BIG, ended, expected, read_all, request, router_for, submit, with_router
from support.replicas import eventually, fake_replica

SEATS = 4
LOOK_AHEAD = 2
ROUTERS = 3


class MostOpen:
    """Watches how many sequences each replica has open, from its first moment to its last."""

    def __init__(self, replicas) -> None:
        self._replicas = replicas
        self.most = dict.fromkeys((replica.info.replica_id for replica in replicas), 0)
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            for replica in self._replicas:
                name = replica.info.replica_id
                self.most[name] = max(self.most[name], replica.intake.num_open)
            await asyncio.sleep(0)

    def stop(self) -> dict[str, int]:
        self._task.cancel()
        return self.most


async def answer(router, wanted) -> tuple[str, int, str | None]:
    (choice,) = await read_all(await submit(router, wanted))
    return choice.text, choice.num_tokens, choice.finish


def test_one_burst_over_three_routers_gives_no_replica_more_than_it_has_room_for():
    async def main():
        async with AsyncExitStack() as stack:
            facts = BIG | {"max_sequences": SEATS, "step_s": 0.002}
            replicas = [
                await stack.enter_async_context(fake_replica(replica_id=name, **facts))
                for name in ("one", "two")
            ]
            settings = {"look_ahead": LOOK_AHEAD, "wait_for_replica_s": 10.0}
            routers = [
                await stack.enter_async_context(router_for(*replicas, **settings))
                for _ in range(ROUTERS)
            ]
            # By now each replica has told each router that there are three of them.
            await eventually(lambda: all(r.engine.load.running == 0 for r in replicas))
            watch = MostOpen(replicas)
            asked = [request([7, number], seed=number, max_tokens=12) for number in range(150)]
            answers = await asyncio.gather(
                *(answer(routers[number % ROUTERS], wanted) for number, wanted in enumerate(asked))
            )
            most = watch.stop()
            assert answers == [expected(wanted) for wanted in asked]
            # Each router may fill the last free seat, and has a look-ahead of its own.
            assert max(most.values()) <= SEATS + (ROUTERS - 1) + LOOK_AHEAD * ROUTERS
            assert min(most.values()) >= SEATS

    asyncio.run(main())


def test_all_of_a_burst_end_when_one_replica_drains_and_another_is_cut_off():
    async def scenario(router, draining, cut, steady):
        asked = [request([9, number], seed=number, max_tokens=6) for number in range(500)]
        burst = [asyncio.create_task(answer(router, wanted)) for wanted in asked]
        await eventually(lambda: router.metrics.generated_tokens > 300)
        assert sum(router.metrics.ended.values()) < 400
        await draining.drain()
        await cut.server.stop()
        answers = await asyncio.gather(*burst)
        assert answers == [expected(wanted) for wanted in asked]
        assert ended(router) == {"finished": 500}
        assert router.metrics.moved["lost"] > 0
        assert draining.idle
        await eventually(lambda: steady.idle)

    with_router(
        scenario,
        replicas=3,
        step_s=0.005,
        max_sequences=8,
        router={"wait_for_replica_s": 10.0, "moves_floor": 1000},
    )
