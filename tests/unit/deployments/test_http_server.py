"""A server that leaves a shared port must cost no client a request."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
import uvloop

from chairlift.deployments.http_server import HttpServer
from support.asgi_client import until
from support.service import free_port

RUNNERS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def named(name: str) -> Callable[..., Awaitable[None]]:
    """An application that answers with its name; to ``/slow`` after a while."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(name))]
        await asyncio.sleep(0.3 if scope["path"] == "/slow" else 0)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": name.encode(), "more_body": False})

    return app


@contextlib.asynccontextmanager
async def serving(name: str, port: int) -> AsyncIterator[HttpServer]:
    server = HttpServer(named(name), "127.0.0.1", port)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(5.0)


class Connection:
    """A client's connection, kept as long as the server allows it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str = "/") -> str:
        """Who answers; raises when nobody does, as no request is sent twice."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"connection: close" in head.lower():
            assert await reader.read() == b""
            await self.close()
        return body.decode()

    @property
    def open(self) -> bool:
        return self._streams is not None

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS.keys())
def test_no_request_fails_while_servers_of_one_port_come_and_go(runner):
    async def client(port: int, keeps: bool, seen: Counter[str], done: asyncio.Event) -> None:
        connection = Connection(port)
        while not done.is_set():
            seen[await connection.ask()] += 1
            if not keeps:
                await connection.close()
            await asyncio.sleep(0.005)
        await connection.close()

    async def main() -> None:
        port, seen, done = free_port(), Counter[str](), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving("stays", port))
            async with asyncio.TaskGroup() as clients:
                for number in range(24):
                    clients.create_task(client(port, number % 2 == 0, seen, done))
                for name in ("a", "b", "c"):
                    async with serving(name, port):
                        await until(lambda name=name: seen[name] > 20)
                    after = seen[name], seen["stays"]
                    await until(lambda after=after: seen["stays"] > after[1] + 20)
                    assert seen[name] == after[0]
                done.set()

    runner(main())


def test_a_leaving_server_tells_connections_to_close_and_waits_for_what_runs():
    async def main() -> None:
        port = free_port()
        async with serving("a", port) as server:
            kept, slow = Connection(port), Connection(port)
            await kept.ask()
            running = asyncio.create_task(slow.ask("/slow"))
            await until(lambda: len(server._server.server_state.tasks) == 1)
            leaving = asyncio.create_task(server.leave())
            await asyncio.sleep(0)
            assert await kept.ask() == "a"
            assert not kept.open
            assert await running == "a"
            assert not slow.open
            await leaving
            with pytest.raises(ConnectionRefusedError):
                await Connection(port).ask()

    asyncio.run(main())


def test_a_request_on_a_kept_connection_is_served_while_others_end():
    async def main() -> None:
        port = free_port()
        async with serving("a", port) as server:
            kept, slow = Connection(port), Connection(port)
            await kept.ask()
            running = asyncio.create_task(slow.ask("/slow"))
            await until(lambda: len(server._server.server_state.tasks) == 1)
            await server.leave(linger_s=0.0)
            quiet = asyncio.create_task(server.quiet(10.0))
            assert await kept.ask() == "a"
            await quiet
            assert await running == "a"

    asyncio.run(main())


def test_a_connection_that_stays_idle_does_not_keep_a_server_from_leaving():
    async def main() -> None:
        port = free_port()
        async with serving("a", port) as server:
            idle = Connection(port)
            await idle.ask()
            await server.stop(5.0)
            assert not server.alive
            await idle.close()

    asyncio.run(main())


def test_responses_carry_the_date():
    async def main() -> None:
        port = free_port()
        async with serving("a", port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            date = head.lower().split(b"date: ")[1].split(b"\r\n")[0]
            assert abs(parsedate_to_datetime(date.decode()).timestamp() - time.time()) < 60
            writer.close()

    asyncio.run(main())


def test_a_port_that_somebody_keeps_for_himself_is_refused():
    async def main() -> None:
        holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with holder:
            with pytest.raises(OSError):
                HttpServer(named("a"), "127.0.0.1", holder.sockets[0].getsockname()[1])

    asyncio.run(main())
