import asyncio

from chairlift.cluster import wire_frame
from chairlift.cluster.protocol import Answer, BlockEvents, Delta, FinishReason, LoadReport
from chairlift.workers.outbox import Outbox

LOAD = LoadReport(step=1)


def begun(most_names: int = 10) -> Outbox:
    """The first message is out."""
    outbox = Outbox(most_names)
    outbox.take(LOAD, ())
    return outbox


def events_of(outbox: Outbox, names=()) -> BlockEvents | None:
    return wire_frame.frame_from_wire(outbox.take(LOAD, names).frame).blocks


def test_news_of_several_steps_are_joined_by_sequence():
    outbox = begun()
    outbox.add([Delta(1, (5,), cached_tokens=4), Delta(2, (6,))])
    outbox.add([Delta(1, (7,)), Delta(1, (), FinishReason.HANDED_OVER)])
    message = outbox.take(LOAD, ())
    assert wire_frame.frame_from_wire(message.frame).deltas == (
        Delta(1, (5, 7), FinishReason.HANDED_OVER, cached_tokens=4),
        Delta(2, (6,)),
    )
    assert not outbox.take(LOAD, ()).frame.handles


def test_two_news_of_a_sequence_in_one_step_are_one_row():
    outbox = begun()
    outbox.add([Delta(1, (5,)), Delta(2, (6,)), Delta(1, (), FinishReason.HANDED_OVER)])
    frame = wire_frame.frame_from_wire(outbox.take(LOAD, ()).frame)
    assert frame.deltas == (Delta(1, (5,), FinishReason.HANDED_OVER), Delta(2, (6,)))


def test_the_first_message_tells_all_names_and_the_next_ones_what_changed():
    outbox = Outbox(10)
    outbox.note(BlockEvents(added=(3,)))
    assert events_of(outbox, {1, 2, 3}) == BlockEvents(reset=True, added=(1, 2, 3))
    assert events_of(outbox) is None
    outbox.note(BlockEvents(added=(4, 5)))
    outbox.note(BlockEvents(added=(6,), removed=(1, 4)))
    assert events_of(outbox) == BlockEvents(added=(5, 6), removed=(1,))


def test_more_changes_than_names_become_the_list_of_all_names():
    """Guards against names that pile up for a router that does not read."""
    outbox = begun(most_names=3)
    for name in range(100):
        outbox.note(BlockEvents(added=(name,), removed=(name - 1,)))
        assert len(outbox._names) <= 3
    for name in range(4):
        outbox.note(BlockEvents(removed=(1000 + name,)))
    outbox.note(BlockEvents(added=(7,)))
    assert events_of(outbox, {7, 99}) == BlockEvents(reset=True, added=(99, 7))
    outbox.note(BlockEvents(added=(8,)))
    assert events_of(outbox) == BlockEvents(added=(8,))


def test_names_alone_wake_nobody():
    async def main():
        outbox = begun()
        waiting = asyncio.create_task(outbox.wait())
        outbox.note(BlockEvents(added=(1,)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.remind()
        assert await waiting

    asyncio.run(main())


def test_it_is_told_when_what_was_taken_is_written():
    async def main():
        outbox = begun()
        assert not outbox.told
        waiting = asyncio.create_task(outbox.wait())
        await asyncio.sleep(0)
        assert outbox.told
        outbox.answer(Answer(1))
        assert not outbox.told
        assert await waiting
        outbox.take(LOAD, ())
        assert not outbox.told
        outbox.close()
        assert not await outbox.wait()
        assert outbox.told

    asyncio.run(main())
