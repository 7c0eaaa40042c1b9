"""Every way in which Chairlift says no, and what each looks like from outside.

This module owns the tree below and the one mapping of its members to HTTP and gRPC status; it
knows neither protocol beyond those numbers and names.

    ChairliftError
    ├── StartupError                 the process cannot start; one clear line, exit code 2
    │   ├── ConfigError              the configuration is wrong
    │   ├── ModelError               the model is missing, damaged or unsupported
    │   └── LedgerError              a ledger file is missing, damaged or of another layout
    └── RequestError                 one request ends; nothing else is harmed
        ├── InvalidRequest           400  the client must change the request (names the field)
        │   └── UnsupportedParameter 400  known to the API, not offered by this server
        ├── Unauthorized             401  no API key, or an unknown one
        ├── Forbidden                403  not from there; a key would not help
        ├── NotFound                 404  no such model or path
        ├── MethodNotAllowed         405
        ├── BodyTimeout              408  the body arrived too slowly
        ├── PayloadTooLarge          413
        ├── UnsupportedMediaType     415
        ├── RateLimited              429  the tenant is over a limit of its own
        ├── Overloaded               429  the service is full; try again after ``retry_after_s``
        ├── Aborted                  499  somebody who may has ended the request
        ├── InternalError            500  a fault of ours
        │   └── SuspectRequest       500  replicas died while they ran it, one after the other
        ├── ReplicaLost              502  the replica that ran the request is gone
        ├── Unavailable              503  no replica can take the request now, or not in time
        └── DeadlineExceeded         504  no first token came in time

A client that goes away is no error: its request ends as cancelled.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "Aborted",
    "BodyTimeout",
    "ChairliftError",
    "ConfigError",
    "DeadlineExceeded",
    "Forbidden",
    "InternalError",
    "InvalidRequest",
    "LedgerError",
    "MethodNotAllowed",
    "ModelError",
    "NotFound",
    "Overloaded",
    "PayloadTooLarge",
    "RateLimited",
    "ReplicaLost",
    "RequestError",
    "StartupError",
    "SuspectRequest",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMediaType",
    "UnsupportedParameter",
]


class ChairliftError(Exception):
    """Root of the tree."""


class StartupError(ChairliftError):
    """A process cannot start; the message is one line that says what to do."""


class ConfigError(StartupError):
    """The configuration cannot be used as it stands."""


class ModelError(StartupError):
    """The model is missing, damaged, or of a kind that Chairlift does not read."""


class LedgerError(StartupError):
    """A ledger file cannot be read: it is missing, damaged, or of another layout."""


class RequestError(ChairliftError):
    """One request ends with this error.

    Attributes:
        http_status: HTTP status code.
        grpc_status: name of the gRPC status code.
        kind: OpenAI's ``error.type``.
        code: machine-readable ``error.code``; also the metric label.
        param: the request field at fault, if one is.
        retry_after_s: seconds after which trying again makes sense, if known.
    """

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    kind: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s


class InvalidRequest(RequestError):
    """The request itself is wrong; ``param`` names the field."""

    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    kind = "invalid_request_error"
    default_code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    """The API knows this parameter, but this server does not offer it."""

    default_code = "unsupported_parameter"


class Unauthorized(RequestError):
    """Nobody knows who asks."""

    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    kind = "authentication_error"
    default_code = "missing_api_key"


class Forbidden(RequestError):
    """Whoever asks may not do this, and a key would not help."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    kind = "permission_error"
    default_code = "forbidden"


class NotFound(RequestError):
    """No such model or path."""

    http_status = 404
    grpc_status = "NOT_FOUND"
    kind = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this HTTP method."""

    http_status = 405
    grpc_status = "UNIMPLEMENTED"
    kind = "invalid_request_error"
    default_code = "method_not_allowed"


class BodyTimeout(RequestError):
    """The request's body did not arrive in time."""

    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"
    kind = "invalid_request_error"
    default_code = "body_timeout"


class PayloadTooLarge(RequestError):
    """The request's body is longer than the server reads."""

    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"
    kind = "invalid_request_error"
    default_code = "payload_too_large"


class UnsupportedMediaType(RequestError):
    """The body is not JSON by its own account."""

    http_status = 415
    grpc_status = "INVALID_ARGUMENT"
    kind = "invalid_request_error"
    default_code = "unsupported_media_type"


class RateLimited(RequestError):
    """The tenant is over a limit of its own; others are not concerned."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    kind = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class Overloaded(RequestError):
    """There is no room for the request now."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    kind = "overloaded_error"
    default_code = "queue_full"


class Aborted(RequestError):
    """Somebody who may has ended it from outside."""

    http_status = 499
    grpc_status = "CANCELLED"
    kind = "invalid_request_error"
    default_code = "aborted"


class InternalError(RequestError):
    """A fault of ours."""


class SuspectRequest(InternalError):
    """It ran on two replicas when they died, so it may be what they died of."""

    default_code = "suspect_request"


class ReplicaLost(RequestError):
    """The replica that ran the request died or was cut off."""

    http_status = 502
    grpc_status = "UNAVAILABLE"
    default_code = "replica_lost"


class Unavailable(RequestError):
    """No replica can take the request now."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    default_code = "no_replica"


class DeadlineExceeded(RequestError):
    """The first token did not come in the time that the client or its class gives."""

    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    default_code = "deadline_exceeded"
