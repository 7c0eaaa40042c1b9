"""A router goes on whatever becomes of the Hub."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from chairlift.cluster.errors import InvalidRequest, Unavailable
from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.cluster.guard_state import GuardState, Rung
from chairlift.cluster.history import Windows
from chairlift.cluster.telemetry import Reply, Report, Series, Tally
from chairlift.cluster.windows import Fold
from chairlift.deployments.guard_keeper import Acted, Order
from chairlift.deployments.hub_link import HubGone, HubLink, LinkTiming
from support.asgi_client import until
from support.guards import guard_state

QUICK = LinkTiming(
    busy_s=0.001, idle_s=0.02, report_s=0.002, answer_s=0.05, figures_s=0.05, max_backoff_s=0.01
)
SERIES = Series("acme", "standard", "≤128")


class FakeRouter:
    """Implements ``SharedUse``, ``Reporter`` and ``Router``; a second passes with each request."""

    def __init__(self, name: str = "", *, enabled: bool = True) -> None:
        self.router_id = name
        self.enabled = enabled
        self.served = 0.0
        self.others: Mapping[str, TenantUse] = {}
        self.acknowledged: list[int] = []
        self.guard: GuardState | None = None
        self._windows = Windows()
        self._totals = {SERIES: Tally()}

    def uses(self, now: float) -> dict[str, TenantUse]:
        return {"acme": TenantUse(service=self.served)}

    def apply(self, others: Mapping[str, TenantUse], now: float) -> None:
        self.others = others

    def heard(self) -> float:
        return self.others.get("acme", TenantUse()).service

    def count(self) -> None:
        one = Tally(started=1)
        self._totals[SERIES].merge(one)
        self._windows.add(self._windows.last + 1, {SERIES: one})

    def obey(self, state: GuardState) -> None:
        if state.version > self.version():
            self.guard = state

    def version(self) -> int:
        return 0 if self.guard is None else self.guard.version

    def report(self, acknowledged: int) -> Report:
        self.acknowledged.append(acknowledged)
        history = self._windows.since(acknowledged)
        return Report(
            router_id=self.router_id,
            model="m",
            seconds=history.seconds,
            tens=history.tens,
            minutes=history.minutes,
            totals=self._totals,
            weights={},
            queued={},
            oldest_s={},
            replicas={},
            after=history.after,
            guard_version=self.version(),
            guard=self.guard if acknowledged == -1 else None,
        )


class FakeHub:
    """A Hub that can be ill; ``calls`` counts who spoke to it.

    Attributes:
        ill: what ails it: an error, or seconds that each answer takes.
        deaf: answers get lost on the way.
    """

    def __init__(self) -> None:
        self.ill: Exception | float | None = None
        self.deaf = False
        self.calls = 0
        self.reports = 0
        self.connections = 0
        self.die()

    def die(self) -> None:
        """All that it knew is gone."""
        self.exchange = Exchange()
        self.fold = Fold()
        self.state: GuardState | None = None

    async def connect(self) -> "FakeHub":
        self.connections += 1
        return self

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> Mapping[str, TenantUse]:
        await self._suffer()
        others = self.exchange.put(router_id, uses, 0.0)
        await self._answer()
        return others

    async def report(self, report: Report) -> Reply:
        await self._suffer()
        self.reports += 1
        known = self.fold.put(pickle.loads(pickle.dumps(report)), 0.0)
        if report.guard is not None:
            self.state = report.guard
        await self._answer()
        newer = self.state is not None and self.state.version > report.guard_version
        return Reply(known, self.state if newer else None)

    async def guard(self) -> dict[str, Any] | None:
        await self._suffer()
        return {"version": self.state and self.state.version}

    async def act(self, order: Order) -> Acted:
        await self._suffer()
        if order.action == "approve":
            raise InvalidRequest("nothing waits", param="approve")
        self.state = guard_state(9, Rung.RESERVE)
        await self._answer()
        return Acted(self.state, {"version": 9})

    async def figures(self) -> dict[str, Any]:
        await self._suffer()
        return {"started": self.started()}

    def started(self) -> int:
        """Requests in the totals, which are also those of the seconds."""
        total = sum(tally.started for tally in self.fold.totals().values())
        (account,) = self.fold._accounts.values() or (None,)
        if account is not None and account.windows.last >= 0:
            window = account.windows.over(account.windows.last + 1, 60)
            assert sum(tally.started for tally in window.values()) == min(total, 60)
        return total

    async def _suffer(self) -> None:
        self.calls += 1
        if isinstance(self.ill, Exception):
            raise self.ill
        if self.ill:
            await asyncio.sleep(self.ill)

    async def _answer(self) -> None:
        if self.deaf:
            raise RuntimeError("the answer got lost")


@contextlib.asynccontextmanager
async def linked(hub: FakeHub, *routers: FakeRouter) -> AsyncIterator[list[HubLink]]:
    links = [HubLink(router, router, router, hub.connect, QUICK) for router in routers]
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        yield links
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_routers_learn_what_the_others_have_served():
    async def main() -> None:
        hub, one, two = FakeHub(), FakeRouter("one"), FakeRouter("two")
        async with linked(hub, one, two):
            one.served, two.served = 5.0, 7.0
            await until(lambda: (one.heard(), two.heard()) == (7.0, 5.0))
            one.served = 6.0
            await until(lambda: two.heard() == 6.0)
        assert (one.others, two.others) == ({}, {}), "who is alone knows of nobody"

    asyncio.run(main())


def test_without_news_the_hub_is_told_rarely():
    async def main() -> int:
        hub, router = FakeHub(), FakeRouter(enabled=False)
        turns = 0
        counted = router.uses

        def uses(now: float) -> dict[str, TenantUse]:
            nonlocal turns
            turns += 1
            return counted(now)

        router.uses = uses  # type: ignore[method-assign]  # a fault
        async with linked(hub, router):
            await until(lambda: hub.calls >= 3)
        assert not hub.reports
        return turns

    assert asyncio.run(main()) > 6


@pytest.mark.parametrize("ill", [HubGone("gone"), RuntimeError("a fault"), 3600.0])
def test_an_ill_hub_is_told_of_once_and_tried_until_it_is_well(ill, caplog):
    async def main() -> FakeHub:
        hub, one, two = FakeHub(), FakeRouter("one"), FakeRouter("two")
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
        hub, one, two = FakeHub(), FakeRouter("one"), FakeRouter("two")
        one.served = two.served = 5.0
        async with linked(hub, one, two):
            await until(lambda: one.heard() == two.heard() == 5.0)
            hub.exchange = Exchange()
            one.served = 6.0
            await until(lambda: two.heard() == 6.0)
            await until(lambda: one.heard() == 5.0)

    asyncio.run(main())


def test_reports_tell_what_the_hub_lacks_and_all_to_one_that_knows_nothing():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        async with linked(hub, router):
            for number in range(1, 6):
                router.count()
                await until(lambda number=number: hub.started() == number)
            assert max(router.acknowledged) >= 3
            hub.die()
            known = len(router.acknowledged)
            await until(lambda: hub.started() == 5)
            assert -1 in router.acknowledged[known:]
            router.count()
            await until(lambda: hub.started() == 6)
            assert router.acknowledged[-1] >= 4

    asyncio.run(main())


def test_answers_that_get_lost_make_nothing_count_twice():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        async with linked(hub, router):
            router.count()
            await until(lambda: hub.started() == 1)
            hub.deaf, known = True, hub.reports
            for _ in range(3):
                router.count()
            await until(lambda: hub.reports > known + 2 or hub.calls > 30)
            hub.deaf = False
            router.count()
            await until(lambda: hub.started() == 5)

    asyncio.run(main())


def test_figures_are_the_hubs_or_none():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        idle = HubLink(router, router, router, hub.connect, QUICK)
        assert await idle.figures() is None, "there is no Hub yet"
        async with linked(hub, router) as (link,):
            router.count()
            await until(lambda: hub.started() == 1)
            assert await link.figures() == {"started": 1}
            for ill in (HubGone("gone"), RuntimeError("a fault"), 3600.0):
                hub.ill = ill
                assert await link.figures() is None
            hub.ill = None
            await until(lambda: hub.calls > 10)
            assert await link.figures() == {"started": 1}

    asyncio.run(main())


def test_what_the_guard_decides_reaches_every_router_and_outlives_the_hub():
    async def main() -> None:
        hub, one, two = FakeHub(), FakeRouter("one"), FakeRouter("two")
        async with linked(hub, one, two):
            await until(lambda: hub.reports >= 2)
            hub.state = decided = guard_state(4, Rung.RESERVE)
            await until(lambda: one.guard == two.guard == decided)
            hub.die()
            await until(lambda: hub.state == decided)
            assert one.guard == two.guard == decided

    asyncio.run(main())


def test_a_hub_that_is_ill_leaves_in_force_what_is():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        async with linked(hub, router):
            hub.state = decided = guard_state(4)
            await until(lambda: router.guard == decided)
            hub.ill, calls = RuntimeError("a fault"), hub.calls
            await until(lambda: hub.calls > calls + 3)
            assert router.guard == decided

    asyncio.run(main())


def test_an_order_is_obeyed_here_at_once():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        async with linked(hub, router) as (link,):
            await until(lambda: hub.reports >= 1)
            assert await link.act(Order("hold", "ann")) == {"version": 9}
            assert router.version() == 9
            assert await link.guard() == {"version": 9}
            with pytest.raises(InvalidRequest):
                await link.act(Order("approve", "ann"))

    asyncio.run(main())


def test_an_order_that_the_hub_does_not_answer_says_so():
    async def main() -> None:
        hub, router = FakeHub(), FakeRouter("one")
        idle = HubLink(router, router, router, hub.connect, QUICK)
        for order in (idle.act(Order("hold", "ann")),):
            with pytest.raises(Unavailable, match="stays"):
                await order
        assert await idle.guard() is None
        async with linked(hub, router) as (link,):
            await until(lambda: hub.reports >= 1)
            for ill in (HubGone("gone"), RuntimeError("a fault"), 3600.0):
                hub.ill = ill
                with pytest.raises(Unavailable) as refused:
                    await link.act(Order("hold", "ann"))
                assert refused.value.code == "no_hub"
                assert await link.guard() is None
            hub.ill = None
            assert router.guard is None

    asyncio.run(main())
