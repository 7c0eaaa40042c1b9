"""The examples of the client's page, against the HTTP API over a scripted router."""

import asyncio
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from chairlift.deployments.http_server import HttpServer
from support.fake_router import FakeRouter
from support.http_app import http_app

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


@contextmanager
def fake_service():
    """Runs in a thread of its own; yields its address and its router."""
    router, ready, found = FakeRouter(), threading.Event(), []

    async def main():
        server = HttpServer(http_app(router), "127.0.0.1", 0)
        stop = asyncio.Event()
        found.append((await server.start(), asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield f"http://127.0.0.1:{found[0][0]}", router
    finally:
        if found:
            found[0][1].call_soon_threadsafe(found[0][2].set)
        thread.join(10)


def test_every_example_works(capsys):
    printed = []
    with fake_service() as (url, router):
        for example in EXAMPLES:
            assert ADDRESS in example
            exec(compile(example.replace(ADDRESS, url), "docs/client.md", "exec"), {})
            printed.append(capsys.readouterr().out)
        router.check_idle()
    answer, ready, stream, tasks, error = printed
    assert re.match(r"Hello world 5 \(\d+,\) [0-9a-f]{32}\n0 stop Hello world\n1 stop", answer)
    assert ready == "True ['fake']\n"
    assert stream.startswith("Hello worldUsage(")
    assert tasks.startswith("Hello world['Hello world', ")
    assert error.startswith("max_tokens invalid_value 400 ")


@pytest.mark.parametrize("name", ["BadAnswer", "Interrupted", "NotAllowed", "NotFound"])
def test_the_table_of_errors_names_what_there_is(name):
    import chairlift.client

    assert f"`{name}`" in PAGE
    assert issubclass(getattr(chairlift.client, name), chairlift.client.ClientError)
