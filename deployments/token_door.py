"""Text to tokens and back, over HTTP.

Owns the form of the two endpoints, which are those of vLLM; what is behind them is ``token_desk``:

    POST /tokenize    {"prompt": "text"} or {"messages": […]}
                      → {"count": 2, "max_model_len": 8192, "tokens": [1, 2], "token_strs": null}
    POST /detokenize  {"tokens": [1, 2]} → {"prompt": "text"}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import orjson

from chairlift.cluster.config import HttpConfig
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.front import INLINE_BODY, Front

__all__ = ["DETOKENIZE", "TOKENIZE", "TokenDoor"]

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


class TokenDoor:
    """Answers for one model."""

    def __init__(self, front: Front, config: HttpConfig) -> None:
        """``config``: what is read of a body."""
        self._front = front
        self._config = config

    def endpoints(self) -> Mapping[str, tuple[str, Endpoint]]:
        """Path → method and endpoint."""
        return {
            TOKENIZE: ("POST", lambda exchange: self._answer(exchange, self._tokenize)),
            DETOKENIZE: ("POST", lambda exchange: self._answer(exchange, self._detokenize)),
        }

    async def _answer(self, exchange: Exchange, work: Callable[[bytes], Any]) -> None:
        body = await exchange.read_json(self._config.max_body, self._config.body_timeout_s)
        async with exchange.while_client_stays():
            answer = await self._front.tokens.run(
                lambda: orjson.dumps(work(body)), quick=len(body) <= INLINE_BODY
            )
        await exchange.respond(200, answer)

    def _tokenize(self, body: bytes) -> dict[str, Any]:
        tokens, spelt = self._front.tokens.tokenize(body)
        return {
            "count": len(tokens),
            "max_model_len": self._front.limit,
            "tokens": tokens,
            "token_strs": spelt,
        }

    def _detokenize(self, body: bytes) -> dict[str, Any]:
        return {"prompt": self._front.tokens.detokenize(body)}
