"""A router goes on whatever becomes of the Hub."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest

from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.deployments.hub_link import HubGone, HubLink, LinkTiming, Put
from support.asgi_client import until

QUICK = LinkTiming(busy_s=0.001, idle_s=0.02, answer_s=0.05, max_backoff_s=0.01)


class FakeShare:
    """Implements ``SharedUse``."""

    def __init__(self) -> None:
        self.served = 0.0
        self.others: Mapping[str, TenantUse] = {}

    def uses(self, now: float) -> dict[str, TenantUse]:
        return {"acme": TenantUse(service=self.served)}

    def apply(self, others: Mapping[str, TenantUse], now: float) -> None:
        self.others = others

    def heard(self) -> float:
        return self.others.get("acme", TenantUse()).service


class FakeHub:
    """A Hub that can be ill; ``calls`` counts who spoke to it."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.ill: Exception | float | None = None
        self.calls = 0
        self.connections = 0

    async def connect(self) -> Put:
        self.connections += 1

        async def put(router_id: str, uses: Mapping[str, TenantUse]) -> Mapping[str, TenantUse]:
            self.calls += 1
            if isinstance(self.ill, Exception):
                raise self.ill
            if self.ill:
                await asyncio.sleep(self.ill)
            return self.exchange.put(router_id, uses, 0.0)

        return put


@contextlib.asynccontextmanager
async def linked(hub: FakeHub, *shares: FakeShare) -> AsyncIterator[list[asyncio.Task[None]]]:
    links = [HubLink(str(i), share, hub.connect, QUICK) for i, share in enumerate(shares)]
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        yield tasks
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_routers_learn_what_the_others_have_served():
    async def main() -> None:
        hub, one, two = FakeHub(), FakeShare(), FakeShare()
        async with linked(hub, one, two):
            one.served, two.served = 5.0, 7.0
            await until(lambda: (one.heard(), two.heard()) == (7.0, 5.0))
            one.served = 6.0
            await until(lambda: two.heard() == 6.0)
        assert (one.others, two.others) == ({}, {}), "who is alone knows of nobody"

    asyncio.run(main())


def test_without_news_the_hub_is_told_rarely():
    async def main() -> int:
        hub, share = FakeHub(), FakeShare()
        turns = 0
        counted = share.uses

        def uses(now: float) -> dict[str, TenantUse]:
            nonlocal turns
            turns += 1
            return counted(now)

        share.uses = uses  # type: ignore[method-assign]  # a fault
        async with linked(hub, share):
            await until(lambda: hub.calls >= 3)
        return turns

    assert asyncio.run(main()) > 6


@pytest.mark.parametrize("ill", [HubGone("gone"), RuntimeError("a fault"), 3600.0])
def test_an_ill_hub_is_told_of_once_and_tried_until_it_is_well(ill, caplog):
    async def main() -> FakeHub:
        hub, one, two = FakeHub(), FakeShare(), FakeShare()
        hub.ill = ill
        async with linked(hub, one, two):
            await until(lambda: hub.calls > 6)
            hub.ill = None
            one.served = 5.0
            await until(lambda: two.heard() == 5.0)
        return hub

    hub = asyncio.run(main())
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 2  # one a router
    assert (hub.connections > 2) == isinstance(ill, HubGone)


def test_a_hub_that_started_anew_hears_all_again():
    async def main() -> None:
        hub, one, two = FakeHub(), FakeShare(), FakeShare()
        one.served = two.served = 5.0
        async with linked(hub, one, two):
            await until(lambda: one.heard() == two.heard() == 5.0)
            hub.exchange = Exchange()
            one.served = 6.0
            await until(lambda: two.heard() == 6.0)
            await until(lambda: one.heard() == 5.0)

    asyncio.run(main())
