"""What a single reader sleeps on."""

import asyncio

from chairlift.router.wake import Wake


def test_a_sleeper_goes_on_when_it_is_woken():
    async def main() -> list[str]:
        wake, heard = Wake(), []

        async def read() -> None:
            await wake.sleep()
            heard.append("first")
            await wake.sleep()
            heard.append("second")

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        wake.wake()
        wake.wake()  # before the reader had its turn: one piece of news
        await asyncio.sleep(0)
        assert heard == ["first"]
        wake.wake()
        await reader
        return heard

    assert asyncio.run(main()) == ["first", "second"]


def test_waking_nobody_does_no_harm_and_is_forgotten():
    async def main() -> bool:
        wake = Wake()
        wake.wake()
        return wake.sleep().done()

    assert asyncio.run(main()) is False


def test_a_reader_that_was_cancelled_can_be_woken():
    async def main() -> None:
        wake = Wake()

        async def read() -> None:
            await wake.sleep()

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        wake.wake()

    asyncio.run(main())
