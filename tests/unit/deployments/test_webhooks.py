"""Calls to people, against a real server that fails first."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from chairlift.deployments.webhooks import MAX_QUEUED, CallCounts, Pager, Patience
from support.asgi_client import until

QUICK = Patience(timeout_s=0.2, first_s=0.001)


@dataclass
class Duty:
    """Who is called: answers with these statuses, then with the last of them; 0: not at all."""

    statuses: Iterable[int]
    bodies: list[str] = field(default_factory=list)
    types: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.over = asyncio.Event()
        self._next = iter(self.statuses)
        self._status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.text())
        self.types.add(request.content_type)
        self._status = next(self._next, self._status)
        if not self._status:
            await self.over.wait()
        return web.Response(status=self._status, headers={"Location": "/elsewhere"})


@asynccontextmanager
async def serving(duty: Duty) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/hook", duty.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        duty.over.set()
        await runner.cleanup()


async def called(duty: Duty, *bodies: bytes) -> CallCounts:
    """Post these and wait until all are over."""
    counts = CallCounts()
    async with serving(duty) as url:
        pager = Pager(url, counts, QUICK)
        for body in bodies:
            pager.post(body)
        await until(lambda: counts.sent + counts.failed + counts.dropped == len(bodies))
        await pager.close()
    return counts


@pytest.mark.parametrize("statuses", [[500, 503, 200], [429, 408, 204], [0, 200]])
def test_a_call_that_fails_is_tried_again(statuses: list[int]) -> None:
    duty = Duty(statuses)
    assert asyncio.run(called(duty, b'{"text": "up"}')) == CallCounts(sent=1)
    assert duty.bodies == ['{"text": "up"}'] * len(statuses)
    assert duty.types == {"application/json"}


def test_calls_come_in_order_and_a_failed_one_makes_way() -> None:
    duty = Duty([503] * QUICK.tries + [200])
    assert asyncio.run(called(duty, b"1", b"2", b"3")) == CallCounts(sent=2, failed=1)
    assert duty.bodies == ["1"] * QUICK.tries + ["2", "3"]


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_what_another_try_cannot_help_with_is_not_tried_again(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    duty = Duty([status])
    assert asyncio.run(called(duty, b"{}")) == CallCounts(failed=1)
    assert len(duty.bodies) == 1
    assert f"status {status}" in caplog.text
    assert "/hook" not in caplog.text, "an address may hold a secret"


def test_nobody_there_is_a_failure_and_no_more() -> None:
    async def main() -> CallCounts:
        counts = CallCounts()
        async with serving(Duty([200])) as url:
            pass
        pager = Pager(url, counts, QUICK)
        pager.post(b"{}")
        await until(lambda: counts.failed == 1)
        await pager.close()
        return counts

    assert asyncio.run(main()) == CallCounts(failed=1)


def test_more_calls_than_can_wait_are_dropped_and_nobody_waits_for_them() -> None:
    async def main() -> CallCounts:
        counts, duty = CallCounts(), Duty([0])
        async with serving(duty) as url:
            pager = Pager(url, counts)
            for _ in range(MAX_QUEUED + 3):
                pager.post(b"{}")
            await until(lambda: bool(duty.bodies))
            await pager.close()
        return counts

    assert asyncio.run(main()) == CallCounts(dropped=3)


def test_calls_go_on_after_a_pause() -> None:
    async def main() -> CallCounts:
        counts = CallCounts()
        async with serving(Duty([200])) as url:
            pager = Pager(url, counts, QUICK)
            for number in range(1, 3):
                pager.post(b"{}")
                await until(lambda number=number: counts.sent == number)
            await pager.close()
        return counts

    assert asyncio.run(main()) == CallCounts(sent=2)
