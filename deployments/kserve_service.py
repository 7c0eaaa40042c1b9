"""``inference.GRPCInferenceService``: the open inference protocol, as KServe and Triton speak it.

Owns what its methods do, for one model with one text in and one text out. It knows nothing of the
protocol's tensors beyond ``kserve_tensors``.

    ModelStreamInfer   requests ──► one task each ──► answers, one at a time ──► the client
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, NoReturn

import grpc.aio

from chairlift import __version__
from chairlift.cluster.errors import NotFound, RequestError
from chairlift.deployments.fan_in import Flights
from chairlift.deployments.front import Front
from chairlift.deployments.generations import Generations
from chairlift.deployments.grpc_call import Call, Method, service_handler
from chairlift.deployments.kserve_tensors import (
    INPUT,
    OUTPUT,
    field_path,
    read_fields,
    write_text,
)
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_response import Api
from chairlift.deployments.proto import kserve_pb2 as pb
from chairlift.deployments.request_terms import read_request_id
from chairlift.deployments.transcript import Transcript

if TYPE_CHECKING:
    from chairlift.deployments.grpc_call import Handler

__all__ = ["KSERVE", "KserveService"]

logger = logging.getLogger(__name__)

KSERVE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
VERSION = "1"
"""Of the model: there is one."""
MAX_OVERLAPPING = 128
"""Requests of one stream that are under way at most; more are read when one has ended."""

_KEYLESS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady")
"""What a health check asks."""


class KserveService:
    """Its methods, over one router."""

    def __init__(self, front: Front, generations: Generations) -> None:
        self._front = front
        self._generations = generations

    def handler(self) -> Handler:
        """To be added to a server."""
        methods: dict[str, Method] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            "ModelStreamInfer": self._model_stream_infer,
        }
        return service_handler(KSERVE, methods, self._front.tenants, _KEYLESS)

    async def _server_live(
        self, request: pb.ServerLiveRequest, call: Call
    ) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(
        self, request: pb.ServerReadyRequest, call: Call
    ) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._front.ready)

    async def _server_metadata(
        self, request: pb.ServerMetadataRequest, call: Call
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="chairlift", version=__version__)

    async def _model_ready(
        self, request: pb.ModelReadyRequest, call: Call
    ) -> pb.ModelReadyResponse:
        served = request.name == self._front.model_name and request.version in ("", VERSION)
        return pb.ModelReadyResponse(ready=served and self._front.ready)

    async def _model_metadata(
        self, request: pb.ModelMetadataRequest, call: Call
    ) -> pb.ModelMetadataResponse:
        call.path_of = {"model": "name", "model_version": "version"}.__getitem__
        self._check_model(request.name, request.version)
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=self._front.model_name,
            versions=[VERSION],
            platform="chairlift",
            inputs=[tensor(name=INPUT, datatype="BYTES", shape=[1])],
            outputs=[tensor(name=OUTPUT, datatype="BYTES", shape=[1])],
        )

    async def _model_infer(
        self, request: pb.ModelInferRequest, call: Call
    ) -> pb.ModelInferResponse:
        call.path_of = field_path
        async with aclosing(self._parts(request, call, call.size)) as parts:
            told = [part async for part in parts]
        return write_text(request, "".join(text for text, _ in told), told[-1][1])

    async def _model_stream_infer(self, request: None, call: Call) -> None:
        await call.open()
        answers: asyncio.Queue[pb.ModelStreamInferResponse | None] = asyncio.Queue(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_all(call, answers))
                while (answer := await answers.get()) is not None:
                    await call.write(answer)
        except* grpc.aio.InternalError:  # nothing can be read or written any more
            logger.debug("stream %s: the client left", call.request_id)

    async def _read_all(
        self, call: Call, answers: asyncio.Queue[pb.ModelStreamInferResponse | None]
    ) -> None:
        """Answer each request; the end of ``answers`` is None."""
        seats = asyncio.Semaphore(MAX_OVERLAPPING)
        async with asyncio.TaskGroup() as requests:
            while (data := await call.read()) is not None:
                await seats.acquire()
                task = requests.create_task(self._answer(data, call, answers))
                task.add_done_callback(lambda _: seats.release())
        await answers.put(None)

    async def _answer(
        self,
        data: bytes,
        call: Call,
        answers: asyncio.Queue[pb.ModelStreamInferResponse | None],
    ) -> None:
        """One request of a stream; its failure is an answer too, and harms no other."""
        request = pb.ModelInferRequest()
        try:
            request = call.parse(data)
            async with aclosing(self._parts(request, call, len(data))) as parts:
                async for text, parameters in parts:
                    parameters["triton_final_response"] = pb.InferParameter(
                        bool_param="finish_reason" in parameters
                    )
                    response = write_text(request, text, parameters)
                    await answers.put(pb.ModelStreamInferResponse(infer_response=response))
            return
        except RequestError as error:
            message = error.message
        except Exception:
            logger.exception("a request of stream %s failed", call.request_id)
            message = "The server failed; the fault is not in the request"
        failed = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        await answers.put(pb.ModelStreamInferResponse(error_message=message, infer_response=failed))

    async def _parts(
        self, request: pb.ModelInferRequest, call: Call, size: int
    ) -> AsyncGenerator[tuple[str, dict[str, pb.InferParameter]]]:
        """Pieces of the text, the last with parameters that tell its end."""
        self._check_model(request.model_name, request.model_version)
        caller = call.caller(read_request_id(request.id) if request.id else None)
        run = self._generations.run(Api.COMPLETION, read_fields(request), caller, size)
        async with run as (generation, flights):
            transcript: Transcript[NoReturn] = Transcript(generation, None)
            async with flights.turns() as turns:
                async for turn in turns:
                    for piece in await transcript.pieces(turn):
                        parameters = {}
                        if piece.finish is not None:
                            parameters = _closing(piece.finish, generation, flights)
                        yield piece.text, parameters

    def _check_model(self, name: str, version: str) -> None:
        self._front.converter.check_model(name)
        if version not in ("", VERSION):
            raise NotFound(
                f"model_version: there is version {VERSION} only",
                param="model_version",
                code="model_not_found",
            )


def _closing(finish: str, generation: Generation, flights: Flights) -> dict[str, pb.InferParameter]:
    usage = flights.usage
    return {
        "finish_reason": pb.InferParameter(string_param=finish),
        "prompt_tokens": pb.InferParameter(int64_param=usage.prompt_tokens),
        "completion_tokens": pb.InferParameter(int64_param=usage.completion_tokens),
        "seed": pb.InferParameter(uint64_param=generation.seeds[0]),
    }
