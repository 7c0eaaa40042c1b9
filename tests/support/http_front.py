"""The HTTP API over a router of a test's making, on a port of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from chairlift.deployments.http_server import HttpServer
from chairlift.router.router import Router
from support.flights import embedded_tokenizer
from support.http_app import http_app


@asynccontextmanager
async def http_front(router: Router) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A session with a connection for each request, and the address of completions."""
    app = http_app(router, tokenizer=embedded_tokenizer(), context_length=4096)
    server = HttpServer(app, "127.0.0.1", 0)
    port = await server.start()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session, f"http://127.0.0.1:{port}/v1/completions"
    finally:
        await server.stop(1.0)
