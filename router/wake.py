"""What one reader sleeps on until there is news.

Owns the future that the reader awaits. It keeps no state: whoever sleeps has looked before, and
looks again after, so that a wake that nobody awaits is lost and does no harm.
"""

from __future__ import annotations

import asyncio

__all__ = ["Wake"]


class Wake:
    """An ``asyncio.Event`` for a single reader, at a third of the cost.

    while not there_is_news():
        await wake.sleep()
    """

    __slots__ = ("_sleeper",)

    def __init__(self) -> None:
        self._sleeper: asyncio.Future[None] | None = None

    def sleep(self) -> asyncio.Future[None]:
        """Done with the next ``wake``; to be awaited before anything else is."""
        self._sleeper = asyncio.get_running_loop().create_future()
        return self._sleeper

    def wake(self) -> None:
        """End the sleep, if there is one; in the event loop."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)
