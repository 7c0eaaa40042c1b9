"""Load reports that say nothing new: the service gets careful, and never stops."""

import asyncio

import pytest

from support.flights import ended, expected, read_all, request, submit, with_router
from support.replicas import eventually

pytestmark = pytest.mark.chaos

SEATS = 8
LOOK_AHEAD = 2
REQUESTS = 120


async def ask_all(router, first: int) -> None:
    """A burst of requests, each of which must be answered as if it were alone."""
    asked = [request([first, n], seed=n, max_tokens=10) for n in range(REQUESTS)]

    async def answer(wanted) -> tuple[str, int, str | None]:
        (choice,) = await read_all(await submit(router, wanted))
        return choice.text, choice.num_tokens, choice.finish

    answers = await asyncio.gather(*map(answer, asked))
    assert answers == [expected(wanted) for wanted in asked]


async def watch(replicas, most: list[int]) -> None:
    while True:
        most.append(max(replica.intake.num_open for replica in replicas))
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("frozen", [1, 3], ids=["one replica", "all replicas"])
@pytest.mark.parametrize("busy", [False, True], ids=["frozen idle", "frozen busy"])
def test_requests_are_answered_and_no_replica_gets_more_than_its_seats(frozen, busy):
    async def scenario(router, *replicas):
        most: list[int] = []
        watching = asyncio.create_task(watch(replicas, most))
        before = asyncio.create_task(ask_all(router, 1)) if busy else None
        if busy:
            await eventually(lambda: all(each.intake.num_open >= SEATS for each in replicas))
        for replica in replicas[:frozen]:
            replica.freeze()
        if before is not None:
            await before
        await eventually(
            lambda: sum((view.load_age_s or 0) > 1.0 for view in router.replicas()) == frozen
        )
        await ask_all(router, 2)
        watching.cancel()
        assert max(most) <= SEATS + LOOK_AHEAD
        assert ended(router) == {"finished": REQUESTS * (1 + busy)}

    with_router(
        scenario,
        replicas=3,
        step_s=0.003,
        max_sequences=SEATS,
        router={"look_ahead": LOOK_AHEAD, "wait_for_replica_s": 10.0},
    )
