"""An OpenAI-style server whose answers a test scripts; listens on a port of this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

__all__ = ["Answer", "ScriptedServer", "serving", "sse", "tokens"]

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


async def sse(request: web.Request, *events: dict[str, Any] | str) -> web.StreamResponse:
    """A stream of events; text stands as it is, for instance ``[DONE]``."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {data}\n\n".encode())
    await response.write_eof()
    return response


async def tokens(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As many tokens as were asked for, one a chunk, and the usage."""
    number, chat = body["max_tokens"], "messages" in body
    events: list[dict[str, Any] | str] = []
    if chat:
        events.append({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for i in range(number):
        choice = {"delta": {"content": f"t{i} "}} if chat else {"text": f"t{i} "}
        events.append({"choices": [choice]})
    prompt = 7 if chat else len(body["prompt"])
    usage = {"prompt_tokens": prompt, "completion_tokens": number}
    return await sse(request, *events, {"choices": [], "usage": usage}, "[DONE]")


class ScriptedServer:
    """Answers completions with ``answer``; keeps the bodies that it was sent."""

    def __init__(self, answer: Answer = tokens) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_post("/v1/completions", self._complete)
        self.app.router.add_post("/v1/chat/completions", self._complete)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        return await self.answer(request, body)


@contextmanager
def serving(server: ScriptedServer) -> Iterator[str]:
    """Run the server in a thread of its own; yields its address."""
    ready = threading.Event()
    found: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        runner = web.AppRunner(server.app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        stop = asyncio.Event()
        found.append((f"http://{host}:{port}", asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield found[0][0]
    finally:
        if found:
            _, loop, stop = found[0]
            loop.call_soon_threadsafe(stop.set)
        thread.join(10)
