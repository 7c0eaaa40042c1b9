"""All flights of one HTTP request as one.

Owns the numbering of a response's choices over several prompts, and that either all of the
prompts are under way or none. It knows neither HTTP nor JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_response import Api, Usage
from chairlift.router.ask import Ask
from chairlift.router.flight import Flight, Update
from chairlift.router.router import Router

__all__ = ["Flights", "Turn", "take_off"]

Turn: TypeAlias = list[Update]
"""News that came together; their ``choice`` is the response's."""


class Flights:
    """The flights of one generation, one a prompt."""

    def __init__(self, flights: Sequence[Flight], generation: Generation) -> None:
        self._flights = flights
        self._n = generation.n
        self._scores_only = generation.scores_only

    @property
    def traceparent(self) -> str:
        """The first prompt's span, or the client's where nothing is traced; "" without either."""
        return self._flights[0].request.traceparent

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        output_tokens = sum(flight.output_tokens for flight in self._flights)
        return Usage(
            prompt_tokens=sum(flight.prompt_tokens for flight in self._flights),
            completion_tokens=0 if self._scores_only else output_tokens,
            cached_tokens=sum(flight.cached_tokens for flight in self._flights),
        )

    def tokens(self, choice: int, begin: int, end: int) -> Sequence[int]:
        """Output tokens of one choice that have been read."""
        prompt, index = divmod(choice, self._n)
        return self._flights[prompt].choices[index].output[begin:end]

    @contextlib.asynccontextmanager
    async def turns(self) -> AsyncIterator[AsyncIterator[Turn]]:
        """Until all choices have ended; raises the RequestError of the first flight that fails."""
        if len(self._flights) == 1:
            yield self._flights[0]
            return
        async with contextlib.aclosing(self._merged()) as turns:
            yield turns

    async def _merged(self) -> AsyncGenerator[Turn, None]:
        arrived: asyncio.Queue[Turn | Exception | None] = asyncio.Queue(len(self._flights))
        pumps = [
            asyncio.create_task(_pump(flight, prompt * self._n, arrived))
            for prompt, flight in enumerate(self._flights)
        ]
        try:
            flying = len(pumps)
            while flying:
                turn: Turn = []
                items = [await arrived.get()]
                while not arrived.empty():
                    items.append(arrived.get_nowait())
                for item in items:
                    if isinstance(item, Exception):
                        raise item
                    if item is None:
                        flying -= 1
                    else:
                        turn += item
                if turn:
                    yield turn
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    flight: Flight, first: int, arrived: asyncio.Queue[Turn | Exception | None]
) -> None:
    """Pass on a flight's news; its end is None, its failure an exception."""
    try:
        async for updates in flight:
            await arrived.put([update._replace(choice=first + update.choice) for update in updates])
    except Exception as error:
        await arrived.put(error)
    else:
        await arrived.put(None)


@contextlib.asynccontextmanager
async def take_off(router: Router, generation: Generation) -> AsyncIterator[Flights]:
    """Submit every prompt and wait until all run; on leaving, whatever has not ended is cancelled.

    Raises the RequestError of the first prompt that is refused; the others are cancelled.
    """
    async with contextlib.AsyncExitStack() as stack:
        flights: list[Flight] = []
        for request in generation.requests:
            if flights and not request.traceparent:  # one trace for all of them
                request = replace(request, traceparent=flights[0].request.traceparent)
            flight = router.submit(
                Ask(
                    request,
                    generation.tenant,
                    generation.stop,
                    continues=generation.api is Api.COMPLETION,
                    deadline_s=generation.deadline_s,
                )
            )
            flights.append(await stack.enter_async_context(flight))
        with _client_fields(generation):
            await _all_placed(flights)
        yield Flights(flights, generation)


@contextlib.contextmanager
def _client_fields(generation: Generation) -> Iterator[None]:
    """What a replica says of a grammar is of the field that it was made from."""
    try:
        yield
    except InvalidRequest as error:
        if error.param != "grammar":
            raise
        field = generation.structure.asked_by
        message = field + error.message.removeprefix("grammar")
        raise InvalidRequest(message, param=field, code=error.code) from None


async def _all_placed(flights: Sequence[Flight]) -> None:
    if len(flights) == 1:
        await flights[0].placed()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for flight in flights:
                group.create_task(flight.placed())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
