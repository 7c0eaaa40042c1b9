"""The client's side of an OpenAI-style server: find the model, read a stream of events.

Owns what load generator and terminal chat share of that protocol; knows nothing of either.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

__all__ = [
    "ServerFault",
    "api_base",
    "first_model",
    "one_line",
    "read_error",
    "stream_events",
    "unusable",
]


class ServerFault(Exception):
    """The server answered, but not with what was asked for.

    Attributes:
        kind: ``http_429``, ``error_CODE`` (an error inside a stream), ``cut_stream`` or
            ``bad_answer``.
        message: what the server said.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def api_base(url: str) -> str:
    """``http://host:port/v1`` from an address with or without ``/v1``; ValueError for no URL."""
    base = url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address; write for instance http://127.0.0.1:8000")
    return base if base.endswith("/v1") else f"{base}/v1"


async def first_model(session: aiohttp.ClientSession, base: str) -> str:
    """The name of the first model that the server offers."""
    async with session.get(f"{base}/models") as response:
        if response.status != 200:
            raise await read_error(response)
        try:
            return str((await response.json())["data"][0]["id"])
        except (ValueError, LookupError, TypeError, aiohttp.ContentTypeError):
            raise ServerFault("bad_answer", f"{base}/models names no model") from None


async def read_error(response: aiohttp.ClientResponse) -> ServerFault:
    """The fault that a response with an error status stands for."""
    body = (await response.content.read(4096)).decode(errors="replace")
    try:
        message = str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = body.strip() or str(response.reason)
    return ServerFault(f"http_{response.status}", message)


def one_line(error: Exception) -> str:
    """What went wrong, without line breaks."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    if isinstance(error, ssl.SSLError):  # whose errno is none of the system's
        return " ".join(str(getattr(error, "verify_message", error.reason) or error).split())
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
    return " ".join((reason or str(error) or type(error).__name__).split())


def unusable(base: str, error: Exception) -> str:
    """Why a command cannot use the server, and what to do."""
    if isinstance(error, ServerFault):
        return f"{base} is no use: {one_line(error)}"
    return f"no server at {base} ({one_line(error)}); start one with chairlift serve, or give --url"


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a server-sent event stream, up to its ``[DONE]``.

    Raises:
        ServerFault: an error event, an event that is no JSON object, or an end without [DONE].
    """
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = orjson.loads(data)
        except ValueError:
            raise ServerFault("bad_answer", f"no JSON: {data[:200]!r}") from None
        if not isinstance(event, dict):
            raise ServerFault("bad_answer", f"no JSON object: {data[:200]!r}")
        if error := event.get("error"):
            fields = error if isinstance(error, dict) else {"message": str(error)}
            raise ServerFault(
                f"error_{fields.get('code') or 'unnamed'}", str(fields.get("message", ""))
            )
        yield event
    raise ServerFault("cut_stream", "the stream ended without [DONE]")
