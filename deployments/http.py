"""The OpenAI-style HTTP API, as an ASGI application.

Owns the endpoints and the way of a request through them:

    key ─► read ─► convert ─► submit ─► placed ─► tokens … ─► end
    └──────── errors are responses ─────────┘ └─ streamed: errors are events; else responses

Written straight to ASGI: between a flight's update and the socket stand one JSON string and one
``send``. It knows neither sockets (``deployments.http_server``) nor how requests are placed.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import orjson

from chairlift.cluster.config import HttpConfig
from chairlift.cluster.errors import InternalError, MethodNotAllowed, NotFound, RequestError
from chairlift.cluster.tenants import Tenant, Tenants
from chairlift.cluster.traceparent import read_traceparent
from chairlift.deployments.api_docs import ApiDocs
from chairlift.deployments.asgi import (
    ClientGone,
    Exchange,
    Receive,
    Scope,
    Send,
    lifespan,
    refuse_websocket,
)
from chairlift.deployments.dashboard import Dashboard, FiguresSource, no_figures
from chairlift.deployments.fan_in import Flights, take_off
from chairlift.deployments.front import Convert, Front
from chairlift.deployments.guard_door import GuardDoor
from chairlift.deployments.openai_convert import Converter, Generation
from chairlift.deployments.openai_logprobs import Columns, LogprobsWriter
from chairlift.deployments.openai_response import Choice, ResponseHead, response_body
from chairlift.deployments.request_terms import TIMEOUT_HEADER, Caller, read_key, read_timeout
from chairlift.deployments.rider_pages import LEDGERS_PREFIX, LEDGERS_SUFFIX, RiderPages
from chairlift.deployments.sse import DONE, ChunkEncoder
from chairlift.deployments.token_door import DETOKENIZE, TOKENIZE, TokenDoor
from chairlift.deployments.tool_formats import ToolFormatName
from chairlift.deployments.transcript import Piece, Transcript, openai_writer
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.ledgers import Ledgers
from chairlift.router.placement import ReplicaView
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer

__all__ = ["HttpApp"]

logger = logging.getLogger(__name__)

KEYED = ("/v1/", TOKENIZE, DETOKENIZE)
"""Paths that begin so need a key, where tenants are configured."""

MODEL_PREFIX = "/v1/models/"

SEED_HEADER = b"x-chairlift-seed"
"""The seed of each prompt, with commas between; to be sent as ``seed`` to get the same again."""

TRACE_HEADER = "traceparent"
"""W3C Trace Context: the client's span in a request, this service's in the response."""

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


@dataclass(eq=False)
class HttpApp:
    """Serves one model over one router.

    Attributes:
        router: owned by the caller, who also closes it.
        template: None for a model that cannot chat.
        model_name: what clients call the model.
        context_length: tokens of a prompt and its answer at most; the replicas may allow less.
        max_choices: of one HTTP request, prompts times ``n``.
        tenants: who may use it.
        figures: of the whole cluster.
        guard: how the Guard is seen, and told what to do; knows who may act by hand.
        ledgers: of the replicas.
        front: what all of the router's listeners share.
        tool_format: how the model writes calls; ``auto``: as its template does.
    """

    router: Router
    tokenizer: Tokenizer
    template: ChatTemplate | None
    _: KW_ONLY
    model_name: str
    context_length: int
    config: HttpConfig
    max_choices: int
    tenants: Tenants
    figures: FiguresSource = no_figures
    guard: GuardDoor = field(default_factory=GuardDoor)
    ledgers: Ledgers = field(default_factory=lambda: Ledgers(dict))
    tool_format: ToolFormatName | Literal["auto"] = "auto"
    _started: int = field(init=False)
    _converter: Converter = field(init=False)
    _pages: RiderPages = field(init=False)
    front: Front = field(init=False)
    _endpoints: dict[str, tuple[str, Endpoint]] = field(init=False)

    def __post_init__(self) -> None:
        self._started = int(time.time())
        self.front = Front(
            self.router,
            self.tokenizer,
            self.template,
            model_name=self.model_name,
            context_length=self.context_length,
            max_choices=self.max_choices,
            tenants=self.tenants,
            tool_format=self.tool_format,
        )
        self._converter = self.front.converter
        dashboard = Dashboard(self.figures)
        self._pages = RiderPages(self.ledgers.fetch, self.guard.who)
        self._endpoints = {
            "/": ("GET", self._index),
            "/dashboard": ("GET", dashboard.page),
            "/dashboard/figures": ("GET", dashboard.figures),
            "/dashboard/riders": ("GET", self._pages.riders),
            **self.guard.endpoints(),
            **ApiDocs(self.model_name).endpoints(),
            **TokenDoor(self.front, self.config).endpoints(),
            "/health": ("GET", self._health),
            "/-/healthz": ("GET", self._alive),
            "/metrics": ("GET", self._metrics),
            "/metrics/cluster": ("GET", dashboard.metrics),
            "/v1/models": ("GET", self._models),
            "/v1/chat/completions": ("POST", partial(self._generate, self._converter.chat)),
            "/v1/completions": ("POST", partial(self._generate, self._converter.completion)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        match scope["type"]:
            case "http":
                await self._serve(Exchange(scope, receive, send))
            case "lifespan":
                await lifespan(receive, send)
            case "websocket":
                await refuse_websocket(receive, send)

    async def _serve(self, exchange: Exchange) -> None:
        """Run the endpoint; the one place where errors become responses."""
        try:
            if exchange.path.startswith(KEYED):
                self._tenant(exchange)
            method, endpoint = self._find(exchange.path)
            if exchange.method in ((method, "HEAD") if method == "GET" else (method,)):
                await endpoint(exchange)
            else:
                error = MethodNotAllowed(f"This path takes {method}, not {exchange.method}")
                await exchange.fail(error, headers=[(b"allow", method.encode())])
        except ClientGone:
            logger.debug("request %s: the client left", exchange.request_id)
        except RequestError as error:
            await exchange.fail(error)
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            await exchange.fail(InternalError("The server failed; the fault is not in the request"))

    def _tenant(self, exchange: Exchange) -> Tenant:
        """Who asks; raises Unauthorized."""
        return self.tenants.find(read_key(exchange.header("Authorization")))

    def _find(self, path: str) -> tuple[str, Endpoint]:
        """The method that a path takes, and its endpoint."""
        if path.startswith(MODEL_PREFIX):
            return "GET", self._model
        if path.startswith(LEDGERS_PREFIX) and path.endswith(LEDGERS_SUFFIX):
            return "GET", self._pages.ledger
        if path not in self._endpoints:
            raise NotFound(f"There is nothing at {path[:200]!r}")
        return self._endpoints[path]

    async def _index(self, exchange: Exchange) -> None:
        await _respond_json(
            exchange, {"model": self.model_name, "endpoints": sorted(self._endpoints)}
        )

    async def _health(self, exchange: Exchange) -> None:
        """200 while at least one replica is live, or one would be started for who asks."""
        views = self.router.replicas()
        live, may_sleep = any(view.ready for view in views), self.router.may_sleep
        status = "asleep" if may_sleep and not live else "unavailable"
        body = {
            "status": "ok" if live else status,
            "model": self.model_name,
            "replicas": [_health_of(view) for view in views],
        }
        await _respond_json(exchange, body, status=200 if live or may_sleep else 503)

    async def _alive(self, exchange: Exchange) -> None:
        """As proxies of Ray Serve answer, which is what KubeRay asks whether a pod takes calls."""
        await exchange.respond(200, b"success", content_type="text/plain")

    async def _metrics(self, exchange: Exchange) -> None:
        page, content_type = self.router.metrics.render()
        await exchange.respond(200, page, content_type=content_type)

    async def _models(self, exchange: Exchange) -> None:
        await _respond_json(exchange, {"object": "list", "data": [self._card()]})

    async def _model(self, exchange: Exchange) -> None:
        self._converter.check_model(exchange.path.removeprefix(MODEL_PREFIX))
        await _respond_json(exchange, self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "chairlift",
            "max_model_len": self.front.limit,
        }

    async def _generate(self, convert: Convert, exchange: Exchange) -> None:
        caller = Caller(
            exchange.request_id,
            self._tenant(exchange),
            read_timeout(exchange.header(TIMEOUT_HEADER)),
            str(read_traceparent(exchange.header(TRACE_HEADER)) or ""),
        )
        body = await exchange.read_json(self.config.max_body, self.config.body_timeout_s)
        async with exchange.while_client_stays():
            generation = await self.front.convert(convert, body, caller, size=len(body))
            del body  # megabytes, perhaps, that the tokens need not wait with
            head = ResponseHead(
                api=generation.api,
                id=f"{generation.api.value}-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self.model_name,
                seeds=generation.seeds,
            )
            headers = [(SEED_HEADER, ",".join(map(str, generation.seeds)).encode())]
            writer = openai_writer(generation, self.front.forms)
            transcript = Transcript(generation, writer)
            async with take_off(self.router, generation) as flights:
                if flights.traceparent:
                    headers.append((TRACE_HEADER.encode(), flights.traceparent.encode()))
                if generation.stream:
                    await exchange.start_stream(headers)
                    # A task of its own, so that news wake nothing but the loop that reads them.
                    rest = await asyncio.create_task(
                        _stream(exchange, generation, head, flights, transcript, writer)
                    )
                else:
                    rest = await _collect(generation, head, flights, transcript, writer)
        if generation.stream:
            await exchange.end_stream(rest)
        else:
            await exchange.respond(200, rest, headers=headers)


async def _respond_json(exchange: Exchange, body: object, *, status: int = 200) -> None:
    await exchange.respond(status, orjson.dumps(body))


def _health_of(view: ReplicaView) -> dict[str, object]:
    """What is not known is null, never 0."""
    load = view.load
    return {
        "id": view.replica_id,
        "live": view.ready,
        "running": load and load.running,
        "waiting": load and load.waiting,
        "blocks_used": load and load.blocks_used,
        "blocks_total": load and load.blocks_total,
        "report_age_s": view.load_age_s,
    }


async def _stream(
    exchange: Exchange,
    generation: Generation,
    head: ResponseHead,
    flights: Flights,
    transcript: Transcript[Columns],
    writer: LogprobsWriter | None,
) -> bytes:
    """Send everything but the last events, which are returned."""
    encoder = ChunkEncoder(head, generation.num_choices, include_usage=generation.include_usage)
    opening = encoder.opening()
    async with flights.turns() as turns:
        async for turn in turns:
            if events := _encode(await transcript.pieces(turn), encoder, writer):
                await exchange.write(opening + events)
                opening = b""
    return (encoder.usage(flights.usage) if generation.include_usage else b"") + DONE


def _encode(
    pieces: list[Piece[Columns]], encoder: ChunkEncoder, writer: LogprobsWriter | None
) -> bytes:
    events = []
    for piece in pieces:
        logprobs = writer.value(piece.logprobs) if writer and piece.logprobs else None
        if piece.text or (logprobs and piece.finish is None):
            events.append(encoder.text(piece.choice, piece.text, logprobs))
            logprobs = None
        if piece.calls:
            events.append(encoder.calls(piece.choice, piece.calls))
        if piece.finish is not None:
            events.append(encoder.finish(piece.choice, piece.finish, logprobs))
    return b"".join(events)


async def _collect(
    generation: Generation,
    head: ResponseHead,
    flights: Flights,
    transcript: Transcript[Columns],
    writer: LogprobsWriter | None,
) -> bytes:
    """The whole response's body."""
    choices = [Choice() for _ in range(generation.num_choices)]
    async with flights.turns() as turns:
        async for turn in turns:
            for piece in await transcript.pieces(turn):
                choice = choices[piece.choice]
                choice.pieces.append(piece.text)
                choice.logprobs += piece.logprobs
                choice.calls += piece.calls
                choice.finish = piece.finish
    return response_body(head, choices, flights.usage, writer)
