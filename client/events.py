"""What the bytes of a streamed answer mean.

Owns the reading of server-sent events, whatever pieces they come in, and what is known once the
stream has ended. Pure: the streams of both clients feed it, and it waits for nothing.
"""

from __future__ import annotations

import re

from chairlift.client.errors import BadAnswer, ClientError, Interrupted, error_event
from chairlift.client.reading import Json, read, read_deltas, read_seeds, read_usage
from chairlift.client.results import Delta, Usage

__all__ = ["Events"]

MAX_EVENT = 16 * 1024**2
"""Bytes of one event; something that is no stream of events must not fill the memory."""

DONE = b"[DONE]"
_END = re.compile(rb"\r\n\r\n|\n\n")


class Events:
    """One streamed answer.

    Attributes:
        done: whether its end has come.
        fault: what ended it instead; what came before still counts.
        usage: None before the end.
        seeds: those of the response's headers.
    """

    def __init__(self, request_id: str, seeds: str = "") -> None:
        self.done = False
        self.fault: ClientError | None = None
        self.usage: Usage | None = None
        self.seeds = tuple(int(seed) for seed in seeds.split(",") if seed.strip().isdecimal())
        self._request_id = request_id
        self._rest = b""

    def feed(self, piece: bytes) -> list[Delta]:
        """What these bytes complete."""
        *whole, self._rest = _END.split(self._rest + piece)
        deltas: list[Delta] = []
        try:
            for event in whole:
                deltas += self._deltas(event)
            if len(self._rest) > MAX_EVENT:
                raise BadAnswer("an event has no end", request_id=self._request_id)
        except ClientError as error:
            self.fault = error
        return deltas

    def end(self) -> None:
        """No more bytes will come; it is a fault if some should have."""
        if not self.done and self.fault is None:
            self.fault = Interrupted("the stream broke off", request_id=self._request_id)

    def _deltas(self, event: bytes) -> list[Delta]:
        lines = (line for line in event.splitlines() if line.startswith(b"data:"))
        data = b"\n".join(line[5:].strip() for line in lines)
        if data == DONE:
            self.done = True
        if not data or self.done or self.fault is not None:
            return []
        return read(self._read, data, self._request_id)

    def _read(self, event: Json) -> list[Delta]:
        if error := event.get("error"):
            raise error_event(error, self._request_id)
        if usage := event.get("usage"):
            self.usage = read_usage(usage)
            self.seeds = read_seeds(event) or self.seeds
        return read_deltas(event)
