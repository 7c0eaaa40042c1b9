"""A worker replica whose words a test scripts, behind the real stream."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.config import RouterConfig
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import Answer, Delta, LoadReport, ReplicaInfo, Request
from chairlift.deployments.http_server import HttpServer
from chairlift.router.router import Router
from support.asgi_client import until
from support.engines import replica_info
from support.fake_tokenizer import FakeTokenizer
from support.http_app import http_app
from support.scored import Script


class ScriptedReplica(pb_grpc.WorkerServicer):
    """Accepts every request, and says at once all that ``script`` has for it, a frame a turn."""

    def __init__(self, info: ReplicaInfo, script: Script) -> None:
        self.info = info
        self.script = script
        self.requests: list[Request] = []

    async def Stream(
        self, messages: AsyncIterator[pb.ToWorker], context: Any
    ) -> AsyncIterator[pb.FromWorker]:
        async for message in messages:
            if message.HasField("hello"):
                yield pb.FromWorker(welcome=wire.welcome_to_wire(self.info))
            for submit in message.submits:
                submission = wire.submission_from_wire(submit)
                self.requests.append(submission.request)
                answer = wire.answer_to_wire(Answer(submission.handle))
                yield pb.FromWorker(answers=[answer])
                for turn in self.script(submission.request):
                    yield pb.FromWorker(frame=self._frame(turn, submission.handle))

    def _frame(self, turn: Iterable[Delta], first: int) -> pb.Frame:
        deltas: Sequence[Delta] = [delta._replace(handle=first + delta.handle) for delta in turn]
        return wire_frame.frame_to_wire(deltas, LoadReport(blocks_total=self.info.blocks_total))


@asynccontextmanager
async def scripted_service(script: Script) -> AsyncIterator[tuple[str, ScriptedReplica]]:
    """HTTP, router and gRPC with such a replica; yields the address of the HTTP API."""
    tokenizer = FakeTokenizer()
    replica = ScriptedReplica(replica_info(vocab_size=tokenizer.vocab_size), script)
    worker = grpc.aio.server()
    pb_grpc.add_WorkerServicer_to_server(replica, worker)
    port = worker.add_insecure_port("127.0.0.1:0")
    await worker.start()
    router = Router(tokenizer, RouterConfig(max_requests=64))
    http = HttpServer(http_app(router), "127.0.0.1", 0)
    try:
        router.update_members({"r": f"127.0.0.1:{port}"})
        url = f"http://127.0.0.1:{await http.start()}/v1"
        await until(lambda: router.max_sequence_tokens is not None)
        yield url, replica
        await until(lambda: router.metrics.open == 0)
        router.check_integrity()
    finally:
        await http.stop(1.0)
        await router.close()
        await worker.stop(0)
