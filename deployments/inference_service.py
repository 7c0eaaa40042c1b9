"""``chairlift.v1.Inference``: Chairlift's own gRPC API.

Owns what its methods do. How a call begins and ends is the business of ``grpc_call``, which
fields there are that of ``inference_fields``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from chairlift import __version__
from chairlift.cluster.errors import NotFound
from chairlift.deployments.fan_in import Flights
from chairlift.deployments.front import INLINE_BODY, Front
from chairlift.deployments.generations import Generations
from chairlift.deployments.grpc_call import Call, Method, service_handler
from chairlift.deployments.inference_answer import Answer, joined, usage_of
from chairlift.deployments.inference_fields import (
    detokenize_fields,
    detokenize_path,
    field_path,
    generation_api,
    generation_fields,
    tokenize_fields,
)
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.router.placement import ReplicaView

if TYPE_CHECKING:
    from chairlift.deployments.grpc_call import Handler

__all__ = ["INFERENCE", "InferenceService"]

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"]


class InferenceService:
    """Its methods, over one router."""

    def __init__(self, front: Front, generations: Generations) -> None:
        self._front = front
        self._generations = generations

    def handler(self) -> Handler:
        """To be added to a server."""
        methods: dict[str, Method] = {
            "Generate": self._generate,
            "GenerateStream": self._generate_stream,
            "Abort": self._abort,
            "GetModelInfo": self._get_model_info,
            "GetLoad": self._get_load,
            "Tokenize": self._tokenize,
            "Detokenize": self._detokenize,
        }
        return service_handler(INFERENCE, methods, self._front.tenants)

    @contextlib.asynccontextmanager
    async def _take_off(
        self, request: pb.GenerateRequest, call: Call
    ) -> AsyncIterator[tuple[Generation, Flights]]:
        call.path_of = field_path(request)
        api = generation_api(request)
        if call.size > INLINE_BODY:
            fields = await asyncio.to_thread(generation_fields, request)
        else:
            fields = generation_fields(request)
        run = self._generations.run(api, fields, call.caller(), call.size)
        del request, fields  # megabytes, perhaps, that the tokens need not wait with
        async with run as (generation, flights):
            await call.open(flights.traceparent)
            yield generation, flights

    async def _generate(self, request: pb.GenerateRequest, call: Call) -> pb.GenerateResponse:
        async with self._take_off(request, call) as (generation, flights):
            answer = Answer(generation, flights, self._front.tokenizer)
            async with flights.turns() as turns:
                chunks = [await answer.chunk(turn) async for turn in turns]
            return pb.GenerateResponse(
                model=self._front.model_name,
                choices=joined(chunks, generation.num_choices),
                usage=usage_of(flights.usage),
                seed=generation.seeds[0],
            )

    async def _generate_stream(self, request: pb.GenerateRequest, call: Call) -> None:
        async with self._take_off(request, call) as (generation, flights):
            del request
            answer = Answer(generation, flights, self._front.tokenizer)
            async with flights.turns() as turns:
                async for turn in turns:
                    await call.write(await answer.chunk(turn))

    async def _abort(self, request: pb.AbortRequest, call: Call) -> pb.AbortResponse:
        aborted = await self._generations.abort(call.tenant, request.request_id)
        if not aborted:
            raise NotFound("request_id: no such request is under way", param="request_id")
        return pb.AbortResponse(aborted=aborted)

    async def _get_model_info(
        self, request: pb.GetModelInfoRequest, call: Call
    ) -> pb.GetModelInfoResponse:
        front = self._front
        return pb.GetModelInfoResponse(
            model=front.model_name,
            max_model_len=front.limit,
            vocab_size=front.tokenizer.vocab_size,
            chat=front.template is not None,
            max_choices=front.max_choices,
            server_version=__version__,
        )

    async def _get_load(self, request: pb.GetLoadRequest, call: Call) -> pb.GetLoadResponse:
        return pb.GetLoadResponse(replicas=map(_load_of, self._front.router.replicas()))

    async def _tokenize(self, request: pb.TokenizeRequest, call: Call) -> pb.TokenizeResponse:
        call.path_of = field_path(request)
        front, quick = self._front, call.size <= INLINE_BODY
        tokens, _ = await front.tokens.run(
            lambda: front.tokens.tokenize(tokenize_fields(request)), quick=quick
        )
        return pb.TokenizeResponse(token_ids=tokens, max_model_len=front.limit)

    async def _detokenize(self, request: pb.DetokenizeRequest, call: Call) -> pb.DetokenizeResponse:
        call.path_of = detokenize_path
        desk, skip_special = self._front.tokens, not request.keep_special_tokens
        text = await desk.run(
            lambda: desk.detokenize(detokenize_fields(request), skip_special=skip_special),
            quick=call.size <= INLINE_BODY,
        )
        return pb.DetokenizeResponse(text=text)


def _load_of(view: ReplicaView) -> pb.ReplicaLoad:
    load = view.load
    if load is None:
        return pb.ReplicaLoad(id=view.replica_id, live=view.ready)
    return pb.ReplicaLoad(
        id=view.replica_id,
        live=view.ready,
        running=load.running,
        waiting=load.waiting,
        blocks_used=load.blocks_used,
        blocks_total=load.blocks_total,
        report_age_s=view.load_age_s,
    )
