"""Calls an ASGI application without a server, and keeps exactly what it sent."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

DISCONNECT = {"type": "http.disconnect"}


@dataclass
class Reply:
    """A response: its start, and the body in the pieces in which it was sent."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; its form is checked."""
        (name, error), *rest = self.json().items()
        assert (name, rest) == ("error", [])
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"] and isinstance(error["message"], str)
        return error

    def events(self) -> list[Any]:
        """The data of a stream's events; ``[DONE]`` stands as text."""
        *events, last = self.body.split(b"\n\n")
        assert last == b""
        assert all(event.startswith(b"data: ") for event in events)
        data = [event.removeprefix(b"data: ") for event in events]
        return ["[DONE]" if item == b"[DONE]" else json.loads(item) for item in data]

    def contents(self) -> list[str]:
        """The texts of the first choice's chunks in a stream of a chat, without the role's."""
        choices = [c for event in self.events()[:-1] for c in event["choices"] if not c["index"]]
        return [c["delta"]["content"] for c in choices if c["delta"].get("content")]


class Client:
    """One exchange with ``app``: ``run`` is the application's whole course, ``leave`` hangs up."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        method: str,
        path: str,
        *,
        body: Iterable[bytes] = (b"",),
        headers: dict[str, str] | None = None,
        endless: bool = False,
    ) -> None:
        """``endless``: more of the body seems to come after the given pieces."""
        self.reply = Reply()
        self._app = app
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "client": None,
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        pieces = list(body)
        self._messages = [
            {"type": "http.request", "body": piece, "more_body": endless or piece is not pieces[-1]}
            for piece in pieces
        ]
        self._gone = asyncio.Event()

    async def run(self) -> Reply:
        await self._app(self.scope, self._receive, self._send)
        return self.reply

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self._gone.wait()
        return DISCONNECT

    async def _send(self, message: dict[str, Any]) -> None:
        assert not self.reply.complete, "sent after the end"
        if message["type"] == "http.response.start":
            assert self.reply.status is None
            self.reply.status = message["status"]
            self.reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            assert self.reply.status is not None, "a body before the status"
            self.reply.pieces.append(message["body"])
            if not message["more_body"]:
                self.reply.complete = True
                self._gone.set()  # as servers do: after the end there is only the disconnect


async def call(app: Any, method: str, path: str, body: object = None, **headers: str) -> Reply:
    """A whole exchange; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await Client(app, method, path, body=[data], headers=named).run()
    assert reply.complete
    return reply


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition; AssertionError after the deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
