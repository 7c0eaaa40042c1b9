"""The Serve deployment of routers: each replica holds a Router and its own HTTP listener.

Owns the wiring of one router process; admission, placement and following are in ``router/``,
the API in ``deployments/http.py``.
"""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.deployments.http import HttpApp
from chairlift.deployments.http_server import HttpServer
from chairlift.deployments.membership import process_membership
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer

__all__ = ["RouterGroup"]

STOP_GRACE_S = 5.0


class RouterGroup:
    """One router."""

    # Ray awaits an async __init__; type checkers do not know of such a thing.
    async def __init__(  # type: ignore[misc]
        self, config: ServiceConfig, workers: DeploymentHandle
    ) -> None:
        path = resolve_model(config.model.path)
        spec = await asyncio.to_thread(read_spec, path)
        tokenizer = await asyncio.to_thread(Tokenizer.load, path)
        template = await asyncio.to_thread(ChatTemplate.load, path, tokenizer)
        model_name = config.model.name or spec.name
        self._router = Router(
            tokenizer, max_requests=config.router.max_requests, model_name=model_name
        )
        app = HttpApp(
            self._router,
            tokenizer,
            template,
            model_name=model_name,
            context_length=spec.context_length,
            config=config.http,
            max_choices=config.router.max_choices,
        )
        # options() makes the handle subscribe to membership; no request goes through it.
        self._workers = workers.options(method_name="check_health")
        process_membership().listen(self._router.update_members)
        self._server = HttpServer(app, config.http.host, config.http.port)
        await self._server.start()

    def check_health(self) -> None:
        """Raises when the listener has ended."""
        if not self._server.alive:
            raise RuntimeError("the HTTP listener has ended")

    async def __del__(self) -> None:
        """Called by Serve on a graceful stop."""
        if hasattr(self, "_server"):
            await self._server.stop(STOP_GRACE_S)
            await self._router.close()
