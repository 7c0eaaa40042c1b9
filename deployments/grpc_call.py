"""One gRPC call, and the way to a service's method and back.

Owns what every method needs of gRPC: who calls, until when, a message that can be read, and an
error's way to its status, which is one place for all methods. It knows none of the services.

    key ─► read ─► method ─► answers … ─► end
    └──────── errors are statuses with details ─┘
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from chairlift.cluster.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    RequestError,
)
from chairlift.cluster.tenants import ANONYMOUS, Tenant, Tenants
from chairlift.cluster.traceparent import read_traceparent
from chairlift.deployments.grpc_errors import FieldPath, ending_of
from chairlift.deployments.request_terms import Caller, read_key, read_request_id

__all__ = ["Call", "Method", "service_handler"]

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    # At run time grpc's class takes no parameters.
    _Context: TypeAlias = grpc.aio.ServicerContext[bytes, Message]
    Handler: TypeAlias = grpc.GenericRpcHandler[bytes, Message]

Method: TypeAlias = Callable[[Any, "Call"], Awaitable[Message | None]]
"""Takes the request (None where many come, see ``Call.read``) and returns the answer (None where
it has written many)."""


class Call:
    """A call, from its metadata to its end.

    Attributes:
        tenant: who calls.
        request_id: the client's ``x-request-id``, or one that was drawn; the answer carries it.
        size: bytes of the message that was read last.
        path_of: what an error's field is called in the messages of this method.
    """

    def __init__(self, context: _Context, message: type[Message]) -> None:
        self._context = context
        self._message = message
        self._metadata = dict(context.invocation_metadata() or ())
        self.tenant: Tenant = ANONYMOUS
        self.request_id = read_request_id(self._text("x-request-id") or "")
        self.size = 0
        self.path_of: FieldPath = str

    def check_key(self, tenants: Tenants) -> None:
        """Find out who calls; raises Unauthorized."""
        self.tenant = tenants.find(read_key(self._text("authorization")))

    def caller(self, request_id: str | None = None) -> Caller:
        """Who asks and until when; raises DeadlineExceeded where it is too late already."""
        left = self._context.time_remaining()
        if left is not None and left <= 0:
            raise DeadlineExceeded("the call's deadline had passed when it came")
        traceparent = str(read_traceparent(self._text("traceparent")) or "")
        return Caller(request_id or self.request_id, self.tenant, left, traceparent)

    def parse(self, data: bytes) -> Any:
        """The message that was sent; raises InvalidRequest where it is none."""
        self.size = len(data)
        try:
            return self._message.FromString(data)
        except DecodeError:
            name = self._message.DESCRIPTOR.full_name
            raise InvalidRequest(f"this is no {name}", code="invalid_message") from None

    async def read(self) -> bytes | None:
        """The next message of a client that sends many; None after its last."""
        data = await self._context.read()
        return data if isinstance(data, bytes) else None

    async def open(self, traceparent: str = "") -> None:
        """Tell that the request has been taken."""
        metadata = [("x-request-id", self.request_id)]
        if traceparent:
            metadata.append(("traceparent", traceparent))
        await self._context.send_initial_metadata(metadata)

    def write(self, message: Message) -> Awaitable[None]:
        """Send one of many answers; waits while the client reads more slowly than they come."""
        return self._context.write(message)

    async def fail(self, error: RequestError) -> None:
        """End with an error."""
        ending = ending_of(error, self.path_of, self.request_id)
        with contextlib.suppress(grpc.aio.InternalError):  # the client has left
            await self._context.abort(ending.code, ending.message, ending.metadata)

    def _text(self, name: str) -> str | None:
        value = self._metadata.get(name)
        return value if isinstance(value, str) else None


def service_handler(
    service: ServiceDescriptor,
    methods: Mapping[str, Method],
    tenants: Tenants,
    keyless: Collection[str] = (),
) -> Handler:
    """Serves all methods of ``service``; those in ``keyless`` need no API key."""
    handlers = {}
    for descriptor in service.methods:
        name = descriptor.name
        serve = _serving(descriptor, methods[name], None if name in keyless else tenants)
        if descriptor.client_streaming:
            make = grpc.stream_stream_rpc_method_handler
        elif descriptor.server_streaming:
            make = grpc.unary_stream_rpc_method_handler
        else:
            make = grpc.unary_unary_rpc_method_handler
        handlers[name] = make(serve, None, _to_bytes)
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _to_bytes(message: Message) -> bytes:
    return message.SerializeToString()


def _serving(
    descriptor: MethodDescriptor, method: Method, tenants: Tenants | None
) -> Callable[[Any, _Context], Awaitable[Message | None]]:
    """The one place where errors become statuses; ``tenants`` is None where no key is needed.

    Messages arrive as bytes: reading them comes after the key, and what cannot be read is the
    client's fault rather than an unknown one.
    """
    message = GetMessageClass(descriptor.input_type)

    async def serve(request: Any, context: _Context) -> Message | None:
        call = Call(context, message)
        try:
            if tenants is not None:
                call.check_key(tenants)
            # Megabytes, perhaps, that a method can let go of before tokens come.
            return await method(None if descriptor.client_streaming else call.parse(request), call)
        except RequestError as error:
            await call.fail(error)
        except grpc.aio.InternalError:  # nothing can be read or written any more
            logger.debug("request %s: the client left", call.request_id)
        except Exception:
            logger.exception("request %s failed", call.request_id)
            await call.fail(InternalError("The server failed; the fault is not in the request"))
        return None

    return serve
