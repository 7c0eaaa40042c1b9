"""Errors as gRPC tells them: a status code, and what else is known as ``google.rpc`` details.

Owns the end of a call that failed. Which error has which code is the business of
``cluster.errors``, and what a field is called that of each service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details_pb
from google.rpc.status_pb2 import Status

from chairlift.cluster.errors import RequestError

__all__ = ["DOMAIN", "Ending", "FieldPath", "ending_of"]

DOMAIN = "chairlift"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE = 1024
"""Characters; message and details stand in headers, of which clients take 8 KiB."""

FieldPath = Callable[[str], str]
"""A field's name in HTTP's terms → where it stands in the message that was sent."""


class Ending(NamedTuple):
    """How a call ends that failed."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, bytes | str], ...]


def ending_of(error: RequestError, path_of: FieldPath, request_id: str) -> Ending:
    """``path_of`` names the field at fault, if one is."""
    code = grpc.StatusCode[error.grpc_status]
    message = error.message
    details: list[Message] = [
        details_pb.ErrorInfo(
            reason=error.code.upper(),
            domain=DOMAIN,
            metadata={"code": error.code, "type": error.kind},
        )
    ]
    if error.param is not None:
        path = path_of(error.param)
        # Messages begin with the field, which has another name here.
        if message.startswith(f"{error.param}:"):
            message = path + message.removeprefix(error.param)
        violation = details_pb.BadRequest.FieldViolation(
            field=path, description=message[:MAX_MESSAGE]
        )
        details.append(details_pb.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(details_pb.RetryInfo(retry_delay=delay))
    message = message[:MAX_MESSAGE]
    status = Status(code=code.value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    metadata = ((DETAILS_KEY, status.SerializeToString()), ("x-request-id", request_id))
    return Ending(code, message, metadata)
