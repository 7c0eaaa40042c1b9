"""Every way in which a call can end without its result.

    ClientError
    ├── NotConnected        no connection came about, so nothing was sent
    ├── Interrupted         the connection broke, or a stream stopped, before the end
    ├── DeadlineExceeded    the call's time is over, here or at the server
    ├── BadAnswer           what answers does not speak this API
    ├── InvalidRequest      4xx  the request has to be changed; ``field`` names where
    │   ├── NotAllowed      401, 403
    │   └── NotFound        404
    ├── Overloaded          429  the service, or its limit for this key, is full
    ├── Unavailable         503  no replica can take the request now
    └── ServerFailed        5xx  the fault is the server's

Owns the tree, and what an answer of the server becomes in it. It knows nothing of connections.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

__all__ = [
    "BadAnswer",
    "ClientError",
    "DeadlineExceeded",
    "Interrupted",
    "InvalidRequest",
    "NotAllowed",
    "NotConnected",
    "NotFound",
    "Overloaded",
    "ServerFailed",
    "Unavailable",
    "error_event",
    "error_response",
]

SHOWN = 500
"""Characters of an answer that is not understood."""


class ClientError(Exception):
    """A call ended without its result.

    Attributes:
        message: what the server, or this side, says of it.
        status: of HTTP; None where there is none, also for errors within a stream.
        code: the server's word for machines.
        field: of the request, where that is at fault.
        retry_after_s: after which trying again makes sense, by the server's word.
        request_id: by which the server's operator finds the request.
        safe_to_repeat: whether nothing can have been computed, so that a retry harms nobody.
    """

    safe_to_repeat: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s
        self.request_id = request_id


class NotConnected(ClientError):
    """No connection to the server came about."""

    safe_to_repeat = True


class Interrupted(ClientError):
    """The connection broke, or the stream stopped, before all was there."""


class DeadlineExceeded(ClientError):
    """The call took longer than it was given."""


class BadAnswer(ClientError):
    """What came is not what the API says; perhaps the address is another server's."""


class InvalidRequest(ClientError):
    """The server will not do this, however often it is asked."""


class NotAllowed(InvalidRequest):
    """The key is missing, unknown, expired, or not good for this."""


class NotFound(InvalidRequest):
    """There is no such model or path."""


class Overloaded(ClientError):
    """There is no room for the request now."""

    safe_to_repeat = True


class Unavailable(ClientError):
    """No replica can take the request now."""

    safe_to_repeat = True


class ServerFailed(ClientError):
    """The server could not do what it should."""


BY_STATUS: Mapping[int, type[ClientError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    429: Overloaded,
    503: Unavailable,
    504: DeadlineExceeded,
}
BY_KIND: Mapping[str, type[ClientError]] = {
    "invalid_request_error": InvalidRequest,
    "overloaded_error": Overloaded,
    "rate_limit_error": Overloaded,
}


def error_response(
    status: int, headers: Mapping[str, str], body: bytes, request_id: str
) -> ClientError:
    """The error that a response stands for."""
    fields = _fields(body)
    kind = BY_STATUS.get(status)
    if kind is None:
        kind = InvalidRequest if 400 <= status < 500 else ServerFailed
    if status < 400:
        kind = BadAnswer
    return kind(
        _text(fields.get("message")) or body.decode(errors="replace")[:SHOWN] or f"HTTP {status}",
        status=status,
        code=_text(fields.get("code")),
        field=_text(fields.get("param")),
        retry_after_s=_retry_after(headers.get("retry-after")),
        request_id=headers.get("x-request-id", request_id),
    )


def error_event(error: object, request_id: str) -> ClientError:
    """The error that an event of a stream stands for."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code = _text(fields.get("code"))
    kind = BY_KIND.get(str(fields.get("type")), ServerFailed)
    return (DeadlineExceeded if code == "deadline_exceeded" else kind)(
        _text(fields.get("message")) or "the stream ended with an error",
        code=code,
        field=_text(fields.get("param")),
        request_id=request_id,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return error if isinstance(error, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _retry_after(header: str | None) -> float | None:
    """Seconds; proxies may send a date instead. None for what is neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            at = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
