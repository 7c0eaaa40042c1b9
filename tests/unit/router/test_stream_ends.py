import asyncio
import time

from chairlift.router.replica_stream import ReplicaStream, StreamTiming, Visitor


def test_is_closed_even_while_it_breaks(monkeypatch):
    """A TaskGroup whose task fails tells that, and not that it was cancelled at the same time."""

    async def main() -> None:
        stream = ReplicaStream(
            "r",
            "127.0.0.1:1",
            visitor=Visitor("router"),
            clock=time.monotonic,
            timing=StreamTiming(),
            on_news=lambda: None,
        )

        async def breaks() -> None:
            stream.task.cancel()
            raise ValueError("broken")

        async def talk() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(breaks())
                await asyncio.Event().wait()

        monkeypatch.setattr(stream, "_talk", talk)
        await asyncio.wait([stream.task], timeout=5.0)
        assert stream.task.cancelled()

    asyncio.run(main())
