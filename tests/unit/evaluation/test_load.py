from __future__ import annotations

import asyncio
from collections.abc import Callable

from chairlift.evaluation.load import Ask, closed_loop, open_loop
from chairlift.evaluation.records import RequestRecord


def asks(*times: float) -> list[Ask]:
    return [Ask(at=at, prompt_tokens=1, output_tokens=2, body=b"") for at in times]


def finished(ask: Ask, intended: float, sent: float) -> RequestRecord:
    return RequestRecord(
        intended=intended,
        sent=sent,
        ended=sent,
        asked_prompt=ask.prompt_tokens,
        asked_output=ask.output_tokens,
    )


def ticking() -> Callable[[], float]:
    """A clock that is a second later at each reading."""
    readings = iter(range(1000))
    return lambda: float(next(readings))


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Each request ends only when all have been sent, which a closed loop would never reach."""

    async def main() -> list[RequestRecord]:
        sent, all_sent = [], asyncio.Event()
        records: list[RequestRecord] = []

        async def send(ask: Ask, intended: float) -> RequestRecord:
            sent.append(ask)
            if len(sent) == 3:
                all_sent.set()
            await all_sent.wait()
            return finished(ask, intended, 0.0)

        async with asyncio.timeout(10):
            await open_loop(
                asks(0.0, 0.0, 0.0), send, records.append, clock=lambda: 0.0, max_in_flight=3
            )
        return records

    assert len(asyncio.run(main())) == 3


def test_a_late_generator_keeps_the_intended_times() -> None:
    async def main() -> list[RequestRecord]:
        records: list[RequestRecord] = []

        async def send(ask: Ask, intended: float) -> RequestRecord:
            return finished(ask, intended, 9.0)

        await open_loop(
            asks(0.0, 0.25, 0.5), send, records.append, clock=lambda: 9.0, max_in_flight=10
        )
        return records

    assert [record.intended for record in asyncio.run(main())] == [0.0, 0.25, 0.5]


def test_requests_beyond_the_in_flight_limit_fail_unsent() -> None:
    async def main() -> list[RequestRecord]:
        records: list[RequestRecord] = []
        ended = asyncio.Event()

        async def send(ask: Ask, intended: float) -> RequestRecord:
            await ended.wait()
            return finished(ask, intended, 0.0)

        def sink(record: RequestRecord) -> None:
            records.append(record)
            if len(records) == 2:
                ended.set()

        await open_loop(asks(0, 0, 0, 0), send, sink, clock=lambda: 0.0, max_in_flight=2)
        return records

    records = asyncio.run(main())
    assert [record.failure for record in records] == ["in_flight_limit"] * 2 + [None] * 2
    assert records[0].sent is None


def test_a_closed_loop_keeps_to_its_concurrency_and_sends_everything() -> None:
    async def main() -> tuple[int, int]:
        records: list[RequestRecord] = []
        under_way = most = 0

        async def send(ask: Ask, intended: float) -> RequestRecord:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return finished(ask, intended, intended)

        await closed_loop(
            iter(asks(*[0.0] * 20)),
            send,
            records.append,
            clock=lambda: 0.0,
            concurrency=3,
            until=1.0,
        )
        return most, len(records)

    assert asyncio.run(main()) == (3, 20)


def test_a_closed_loop_stops_at_its_time() -> None:
    async def main() -> int:
        records: list[RequestRecord] = []

        async def send(ask: Ask, intended: float) -> RequestRecord:
            return finished(ask, intended, intended)

        await closed_loop(
            iter(asks(*[0.0] * 20)),
            send,
            records.append,
            clock=ticking(),
            concurrency=1,
            until=10.0,
        )
        return len(records)

    assert asyncio.run(main()) == 5  # two readings of the clock each


def test_stopping_a_run_leaves_a_record_of_what_was_under_way() -> None:
    async def main() -> list[RequestRecord]:
        records: list[RequestRecord] = []
        started = asyncio.Event()

        async def send(ask: Ask, intended: float) -> RequestRecord:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(
            open_loop(asks(0.0), send, records.append, clock=lambda: 0.0, max_in_flight=9)
        )
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return records

    assert [record.failure for record in asyncio.run(main())] == ["interrupted"]
