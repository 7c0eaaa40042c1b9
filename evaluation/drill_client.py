"""A client that keeps all that it was told, so that two answers can be compared to the letter.

Owns one request's way over HTTP, streamed or not, and the look at /health and /metrics. An answer
that breaks the rules of the protocol is a failed one: an end told twice, text after the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import aiohttp
import orjson
import uvloop

from chairlift.evaluation.metrics_page import MetricsPage
from chairlift.evaluation.openai_stream import ServerFault, one_line, read_error, stream_events

__all__ = [
    "Answer",
    "DrillClient",
    "Question",
    "ReplicaHealth",
    "Said",
    "drill_client",
    "in_loop",
    "load_session",
]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Question:
    """One request: ``path`` below /v1, and the body."""

    path: str
    body: Mapping[str, Any]


@dataclass(slots=True)
class Said:
    """One choice, put together: the same whether it was streamed or not.

    ``pieces``: when each piece of the text arrived, by the monotonic clock; of streams only.
    """

    text: str = ""
    finish: str | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    pieces: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Seconds between the pieces of a stream."""
        return [later - earlier for earlier, later in pairwise(self.pieces)]


@dataclass(slots=True)
class Answer:
    """What became of a question.

    Attributes:
        choices: by index.
        usage: prompt and output tokens, as the server counted them.
        failure: what went wrong, or None.
    """

    choices: dict[int, Said] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    failure: str | None = None

    @property
    def texts(self) -> list[str]:
        return [said.text for _, said in sorted(self.choices.items())]

    @property
    def finishes(self) -> list[str | None]:
        return [said.finish for _, said in sorted(self.choices.items())]

    @property
    def logprobs(self) -> list[dict[str, list[Any]]]:
        return [said.logprobs for _, said in sorted(self.choices.items())]

    @property
    def output_tokens(self) -> int:
        return self.usage[1] if self.usage is not None else 0

    def take(self, event: Mapping[str, Any], now: float | None) -> None:
        """An event of a stream, or the whole body, which has no time."""
        if isinstance(usage := event.get("usage"), dict):
            self.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in event.get("choices") or ():
            self._take_choice(choice, now)

    def _take_choice(self, choice: Mapping[str, Any], now: float | None) -> None:
        said = self.choices.setdefault(choice["index"], Said())
        content = choice.get("delta") or choice.get("message") or choice
        text = content.get("content") or content.get("text") or ""
        finish = choice.get("finish_reason")
        if said.finish is not None and (text or finish is not None):
            raise ServerFault("bad_answer", "more came after the end")
        if text:
            said.text += text
            if now is not None:
                said.pieces.append(now)
        said.finish = finish
        for name, values in (choice.get("logprobs") or {}).items():
            if isinstance(values, list):
                said.logprobs.setdefault(name, []).extend(values)


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """One replica as /health shows it; numbers are None while they are not known."""

    id: str
    live: bool
    running: int | None
    waiting: int | None
    blocks_used: int | None


@dataclass(frozen=True, slots=True)
class DrillClient:
    """Asks one service.

    Attributes:
        url: without ``/v1``.
    """

    session: aiohttp.ClientSession
    url: str
    timeout_s: float = 120.0

    async def ask(self, question: Question) -> Answer:
        """Follow it to its end; whatever goes wrong becomes the answer's failure."""
        answer = Answer()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._follow(question, answer)
        except ServerFault as error:
            answer.failure = f"{error.kind}: {error.message}"
        except TimeoutError:
            answer.failure = f"no end within {self.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError, LookupError) as error:
            answer.failure = one_line(error)
        return answer

    async def health(self) -> list[ReplicaHealth]:
        """All replicas of the router that answers; none while there is no answer."""
        try:
            async with self.session.get(f"{self.url}/health") as response:
                replicas = (await response.json())["replicas"]
        except (aiohttp.ClientError, OSError):
            return []
        names = ReplicaHealth.__dataclass_fields__
        return [ReplicaHealth(**{name: each[name] for name in names}) for each in replicas]

    async def metrics(self) -> MetricsPage:
        """The page of the router that answers."""
        async with self.session.get(f"{self.url}/metrics") as response:
            return MetricsPage(await response.text())

    async def model(self) -> str:
        """The first model's name."""
        async with self.session.get(f"{self.url}/v1/models") as response:
            return str((await response.json())["data"][0]["id"])

    async def _follow(self, question: Question, answer: Answer) -> None:
        address = f"{self.url}/v1/{question.path}"
        headers = {"Content-Type": "application/json"}
        data = orjson.dumps(question.body)
        async with self.session.post(address, data=data, headers=headers) as response:
            if response.status != 200:
                raise await read_error(response)
            if not question.body.get("stream"):
                answer.take(orjson.loads(await response.read()), None)
            else:
                async for event in stream_events(response):
                    answer.take(event, time.monotonic())
        if answer.usage is None or None in answer.finishes:
            raise ServerFault("bad_answer", "a choice has no end, or the usage is missing")


@asynccontextmanager
async def load_session(
    headers: Mapping[str, str] | None = None,
    traces: Iterable[aiohttp.TraceConfig] = (),
) -> AsyncIterator[aiohttp.ClientSession]:
    """A connection for each request, so that several routers on one port all have their part."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, trace_configs=list(traces)
    ) as session:
        yield session


@asynccontextmanager
async def drill_client(url: str, timeout_s: float = 120.0) -> AsyncIterator[DrillClient]:
    async with load_session() as session:
        yield DrillClient(session, url, timeout_s)


def in_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, in a loop that costs the client as little as it can."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
