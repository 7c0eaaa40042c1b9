"""Both clients behind one face, so that one test shows a behaviour of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from chairlift.client import AsyncClient, Client

__all__ = ["CLIENTS", "ThreadClient", "collect", "opened"]


class ThreadStream:
    """A ``Stream`` whose waiting is done in a thread."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    async def __aenter__(self) -> ThreadStream:
        await asyncio.to_thread(self.stream.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.stream.close)

    def __aiter__(self) -> ThreadStream:
        return self

    async def __anext__(self) -> Any:
        end = object()
        delta = await asyncio.to_thread(next, self.stream, end)
        if delta is end:
            raise StopAsyncIteration
        return delta


class ThreadClient:
    """A ``Client`` whose calls are made in threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = Client(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if name.startswith("stream_"):
            return lambda *arguments, **options: ThreadStream(method(*arguments, **options))
        return lambda *arguments, **options: asyncio.to_thread(method, *arguments, **options)


CLIENTS = {"threads": ThreadClient, "asyncio": AsyncClient}


@asynccontextmanager
async def opened(kind: str, url: str, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
    client = CLIENTS[kind](url, *arguments, **options)
    try:
        yield client
    finally:
        await client.close()


async def collect(stream: Any) -> list[Any]:
    async with stream:
        return [delta async for delta in stream]
