"""Calls services that it learns of by reflection alone, from command lines of grpcurl."""

import json
import shlex
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha import reflection_pb2_grpc as pb_grpc


class Reflected:
    """What a server says that it serves."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def services(self) -> list[str]:
        answer = await self._ask(list_services="")
        return sorted(service.name for service in answer.list_services_response.service)

    async def methods(self, service: str) -> dict[str, MethodDescriptor]:
        answer = await self._ask(file_containing_symbol=service)
        pool = DescriptorPool()  # so that nothing comes from what this process has imported
        files = {}
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        added: set[str] = set()

        def add(name: str) -> None:
            if name not in added:
                added.add(name)
                for dependency in files[name].dependency:
                    add(dependency)
                pool.Add(files[name])

        for name in files:
            add(name)
        found = pool.FindServiceByName(service)
        return {method.name: method for method in found.methods}

    async def call(
        self, path: str, request: dict[str, Any], metadata: tuple[tuple[str, str], ...] = ()
    ) -> list[dict[str, Any]]:
        """All answers, as JSON has them."""
        service, _, name = path.partition("/")
        method = (await self.methods(service))[name]
        message = json_format.ParseDict(request, GetMessageClass(method.input_type)())
        kind = f"{_number(method.client_streaming)}_{_number(method.server_streaming)}"
        made = getattr(self._channel, kind)(
            f"/{path}",
            type(message).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        sent = iter([message]) if method.client_streaming else message
        answer = made(sent, metadata=metadata)
        found = [each async for each in answer] if method.server_streaming else [await answer]
        return [json_format.MessageToDict(each) for each in found]

    async def run(self, command: str) -> list[Any]:
        """What ``grpcurl -plaintext [-H …] [-d …] ADDRESS METHOD`` or ``… list`` says."""
        name, *words = shlex.split(command)
        assert name == "grpcurl", command
        data, metadata, rest = "{}", [], []
        while words:
            match words.pop(0):
                case "-plaintext":
                    pass
                case "-d":
                    data = words.pop(0)
                case "-H":
                    key, _, value = words.pop(0).partition(": ")
                    metadata.append((key.lower(), value))
                case word:
                    rest.append(word)
        _, wanted, *more = rest
        if wanted == "list":
            return list(await self.methods(more[0])) if more else list(await self.services())
        return await self.call(wanted, json.loads(data), tuple(metadata))

    async def _ask(self, **question: str) -> pb.ServerReflectionResponse:
        stub = pb_grpc.ServerReflectionStub(self._channel)
        stream = stub.ServerReflectionInfo(iter([pb.ServerReflectionRequest(**question)]))
        (answer,) = [each async for each in stream]
        assert not answer.HasField("error_response"), answer
        return answer


def _number(streams: bool) -> str:
    return "stream" if streams else "unary"
