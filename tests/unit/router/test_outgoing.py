import asyncio

from chairlift.cluster import wire
from chairlift.cluster.protocol import Controls
from chairlift.router.outgoing import Outgoing
from support.engines import submission


def test_a_cancellation_never_overtakes_its_submission():
    async def main():
        outgoing = Outgoing()
        outgoing.submit(submission(1, [1] * 900_000))
        outgoing.submit(submission(2, [1] * 900_000))
        outgoing.cancel([2])
        first, second = await outgoing.next(), await outgoing.next()
        assert [each.handle for each in first.submits] == [1] and not first.cancels
        assert [each.handle for each in second.submits] == [2] and list(second.cancels) == [2]

    asyncio.run(main())


def test_what_is_cleared_is_said_to_nobody():
    async def main():
        outgoing = Outgoing()
        outgoing.submit(submission(1))
        outgoing.cancel([1])
        outgoing.clear()
        waiting = asyncio.create_task(outgoing.next())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        outgoing.cancel([7])
        assert list((await waiting).cancels) == [7]

    asyncio.run(main())


def test_controls_go_first_and_once_to_each_connection():
    async def main():
        outgoing = Outgoing()
        outgoing.submit(submission(1, [1] * 900_000))
        outgoing.submit(submission(2, [1] * 900_000))
        outgoing.tell(Controls(1))
        outgoing.tell(Controls(2, admit=0.5, lowest=0))
        first, second = await outgoing.next(), await outgoing.next()
        assert wire.controls_from_wire(first.controls) == Controls(2, admit=0.5, lowest=0)
        assert len(first.submits) == 1 and not second.HasField("controls")
        outgoing.clear()
        assert (await outgoing.next()).controls.version == 2
        outgoing.cancel([7])
        assert not (await outgoing.next()).HasField("controls")

    asyncio.run(main())


def test_controls_wake_who_waits_for_something_to_say():
    async def main():
        outgoing = Outgoing()
        waiting = asyncio.create_task(outgoing.next())
        await asyncio.sleep(0)
        outgoing.tell(Controls(3))
        assert (await waiting).controls.version == 3

    asyncio.run(main())
