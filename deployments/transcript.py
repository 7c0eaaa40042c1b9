"""What the updates of a generation add to its response.

Owns what stands before a choice's text, what is left out of it, and when log probabilities are
written; in which form is the writer's business. It knows neither HTTP nor gRPC, nor whether the
response is streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.deployments.fan_in import Turn
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_logprobs import (
    LogprobsWriter,
    TokenForms,
    chat_logprobs,
    completion_logprobs,
)
from chairlift.deployments.openai_response import Api
from chairlift.deployments.tool_reader import CallDelta, ToolReader
from chairlift.router.choice import Update
from chairlift.router.scored_text import ScoredToken

__all__ = ["Piece", "Transcript", "Writer", "openai_writer"]

TOKENS_AT_ONCE = 64
"""Tokens whose log probabilities are written before others get their turn."""


PartT = TypeVar("PartT")
PartT_co = TypeVar("PartT_co", covariant=True)


class Writer(Protocol[PartT_co]):
    """Writes log probabilities in some form."""

    def columns(self, tokens: Sequence[ScoredToken], before: int) -> PartT_co:
        """Those of some tokens, with so many characters before the tokens' text."""


def openai_writer(generation: Generation, forms: TokenForms) -> LogprobsWriter | None:
    """Of the endpoint that was asked; None if nobody asked for log probabilities."""
    if not generation.with_logprobs:
        return None
    return (chat_logprobs if generation.api is Api.CHAT else completion_logprobs)(forms)


class Piece(NamedTuple, Generic[PartT]):
    """What comes next of one choice; a tuple, for one is made per token.

    Attributes:
        logprobs: of the tokens of ``text``; with the last piece, also of tokens behind the text.
        finish: set in the choice's last piece, and only there.
        num_tokens: output tokens behind this piece.
        calls: of tools.
    """

    choice: int
    text: str
    logprobs: tuple[PartT, ...]
    finish: str | None
    num_tokens: int = 0
    calls: tuple[CallDelta, ...] = ()


class Transcript(Generic[PartT]):
    """The pieces of one response.

    Attributes:
        writer: of log probabilities; None if nobody asked for them.
    """

    def __init__(self, generation: Generation, writer: Writer[PartT] | None) -> None:
        self._generation = generation
        self._echoes = set(range(generation.num_choices)) if generation.echo else set()
        self._readers: dict[int, ToolReader] = {}
        if (use := generation.structure.use) is not None:
            form = generation.structure.form
            choices = range(generation.num_choices)
            self._readers = {choice: ToolReader(form, use.callable) for choice in choices}
        self._is_plain = not (generation.echo or generation.with_logprobs or self._readers)
        self._prompts: dict[int, tuple[PartT, ...]] = {}
        self.writer = writer

    async def pieces(self, turn: Turn) -> list[Piece[PartT]]:
        """What the news of one turn add, in their order."""
        if self._is_plain:
            return [
                Piece(update.choice, update.text, (), update.finish, update.num_tokens)
                for update in turn
            ]
        pieces: list[Piece[PartT]] = []
        for update in turn:
            choice = update.choice
            if choice in self._echoes:
                self._echoes.discard(choice)
                pieces.append(await self._echo(choice, update.prompt_logprobs))
            if self._generation.scores_only:
                pieces.append(Piece(choice, "", (), update.finish and "length"))
            else:
                logprobs = await self._output(choice, update) if update.tokens else ()
                piece = Piece(choice, update.text, logprobs, update.finish, update.num_tokens)
                pieces.append(self._read(piece))
        return pieces

    def _read(self, piece: Piece[PartT]) -> Piece[PartT]:
        """The piece, with what of its text is calls."""
        reader = self._readers.get(piece.choice)
        if reader is None:
            return piece
        read = reader.feed(piece.text, last=piece.finish is not None)
        called = piece.finish == "stop" and reader.num_calls
        finish = "tool_calls" if called else piece.finish
        return piece._replace(text=read.text, finish=finish, calls=read.calls)

    async def _output(self, choice: int, update: Update) -> tuple[PartT, ...]:
        echo = self._generation.echo
        before = len(echo[choice // self._generation.n].text) if echo else 0
        return await self._columns(update.tokens, before)

    async def _echo(self, choice: int, logprobs: Sequence[TokenLogprobs]) -> Piece[PartT]:
        """The prompt; the choices of one prompt share what is written of it."""
        prompt = choice // self._generation.n
        echo = self._generation.echo[prompt]
        if prompt not in self._prompts:
            scores = (None, *logprobs)
            tokens = self._generation.requests[prompt].prompt if self.writer else ()
            scored = [
                ScoredToken(*each)
                for each in zip(tokens, echo.offsets, scores[: len(tokens)], strict=True)
            ]
            self._prompts[prompt] = await self._columns(scored, 0)
        return Piece(choice, echo.text, self._prompts[prompt], None)

    async def _columns(self, tokens: Sequence[ScoredToken], before: int) -> tuple[PartT, ...]:
        if self.writer is None:
            return ()
        parts = []
        for start in range(0, len(tokens), TOKENS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            parts.append(self.writer.columns(tokens[start : start + TOKENS_AT_ONCE], before))
        return tuple(parts)
