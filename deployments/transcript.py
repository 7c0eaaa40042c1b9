"""What the updates of a generation add to its response.

Owns what stands before a choice's text, what is left out of it, and the writing of log
probabilities. It knows neither HTTP nor whether the response is streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.deployments.fan_in import Turn
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_logprobs import (
    Columns,
    LogprobsWriter,
    TokenForms,
    chat_logprobs,
    completion_logprobs,
)
from chairlift.deployments.openai_response import Api
from chairlift.router.choice import Update
from chairlift.router.scored_text import ScoredToken

__all__ = ["Piece", "Transcript"]

TOKENS_AT_ONCE = 64
"""Tokens whose log probabilities are written before others get their turn."""


class Piece(NamedTuple):
    """What comes next of one choice; a tuple, for one is made per token.

    Attributes:
        logprobs: of the tokens of ``text``; with the last piece, also of tokens behind the text.
        finish: set in the choice's last piece, and only there.
    """

    choice: int
    text: str
    logprobs: tuple[Columns, ...]
    finish: str | None


class Transcript:
    """The pieces of one response.

    Attributes:
        writer: of log probabilities; None if nobody asked for them.
    """

    def __init__(self, generation: Generation, forms: TokenForms) -> None:
        self._generation = generation
        self._echoes = set(range(generation.num_choices)) if generation.echo else set()
        self._is_plain = not (generation.echo or generation.with_logprobs)
        self._prompts: dict[int, tuple[Columns, ...]] = {}
        self.writer: LogprobsWriter | None = None
        if generation.with_logprobs:
            chat = generation.api is Api.CHAT
            self.writer = (chat_logprobs if chat else completion_logprobs)(forms)

    async def pieces(self, turn: Turn) -> list[Piece]:
        """What the news of one turn add, in their order."""
        if self._is_plain:
            return [Piece(update.choice, update.text, (), update.finish) for update in turn]
        pieces = []
        for update in turn:
            choice = update.choice
            if choice in self._echoes:
                self._echoes.discard(choice)
                pieces.append(await self._echo(choice, update.prompt_logprobs))
            if self._generation.scores_only:
                pieces.append(Piece(choice, "", (), update.finish and "length"))
            else:
                logprobs = await self._output(choice, update) if update.tokens else ()
                pieces.append(Piece(choice, update.text, logprobs, update.finish))
        return pieces

    async def _output(self, choice: int, update: Update) -> tuple[Columns, ...]:
        echo = self._generation.echo
        before = len(echo[choice // self._generation.n].text) if echo else 0
        return await self._columns(update.tokens, before)

    async def _echo(self, choice: int, logprobs: Sequence[TokenLogprobs]) -> Piece:
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

    async def _columns(self, tokens: Sequence[ScoredToken], before: int) -> tuple[Columns, ...]:
        if self.writer is None:
            return ()
        parts = []
        for start in range(0, len(tokens), TOKENS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            parts.append(self.writer.columns(tokens[start : start + TOKENS_AT_ONCE], before))
        return tuple(parts)
