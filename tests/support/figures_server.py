"""The pages about the cluster on a port of this machine, with figures of a test's making."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chairlift.deployments.http_server import HttpServer
from support.figures import cluster_figures
from support.http_app import http_app


class FakeHub:
    """Answers what ``figures`` holds, each time a second later; None: it does not answer.

    It says nothing new after ``answers``, or no longer answers if it is to be ``silent`` then.
    """

    def __init__(
        self, figures: dict[str, Any] | None, *, answers: int = 1000, silent: bool = False
    ) -> None:
        self.figures = figures
        self.asked = 0
        self._answers = answers
        self._silent = silent

    async def ask(self) -> dict[str, Any] | None:
        self.asked += 1
        if self.figures is None or (self._silent and self.asked > self._answers):
            return None
        return self.figures | {"at": self.figures["at"] + min(self.asked, self._answers)}


@contextmanager
def figures_server(hub: FakeHub | None = None, **changes: Any) -> Iterator[str]:
    """Yields its address; by default the Hub answers ``cluster_figures``.

    ``changes`` are fields of HttpApp.
    """
    asked = hub or FakeHub(cluster_figures())
    ready, ports, ends = threading.Event(), [], []

    async def main() -> None:
        server = HttpServer(http_app(figures=asked.ask, **changes), "127.0.0.1", 0)
        end = asyncio.Event()
        ends.append((asyncio.get_running_loop(), end))
        ports.append(await server.start())
        ready.set()
        await end.wait()
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(10.0)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop, end = ends[0]
        loop.call_soon_threadsafe(end.set)
        thread.join()
