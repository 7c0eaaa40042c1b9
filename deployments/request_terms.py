"""On what terms a request is served: in whose name, in which class, and until when.

Owns the rules by which a client's wishes and its tenant's rights become terms. It knows neither
HTTP beyond the text of two headers, nor what the terms are enforced with.
"""

from __future__ import annotations

import math
import re
import uuid
from dataclasses import dataclass

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.protocol import Priority
from chairlift.cluster.tenants import ANONYMOUS, Tenant

__all__ = [
    "TIMEOUT_HEADER",
    "Caller",
    "read_deadline",
    "read_key",
    "read_priority",
    "read_request_id",
    "read_timeout",
    "salt_for",
]

TIMEOUT_HEADER = "X-Request-Timeout"
MAX_REQUEST_ID = 128

_DECIMAL = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as it is known before the body has been read.

    Attributes:
        request_id: what the client calls its request, or what we do; need not be unique.
        timeout_s: the header's seconds to the first token; None without it.
        traceparent: the client's span; "" where it has none that can be read.
    """

    request_id: str
    tenant: Tenant = ANONYMOUS
    timeout_s: float | None = None
    traceparent: str = ""


def read_key(header: str | None) -> str | None:
    """The API key in an Authorization header; None where there is none."""
    scheme, _, key = (header or "").partition(" ")
    return (key.strip() or None) if scheme.lower() == "bearer" else None


def read_request_id(header: str) -> str:
    """What the client calls its request, if that can be told to others; else a name is drawn."""
    if 0 < len(header) <= MAX_REQUEST_ID and header.isascii() and header.isprintable():
        return header
    return uuid.uuid4().hex


def read_timeout(header: str | None) -> float | None:
    """The header's seconds; raises InvalidRequest unless they are a positive decimal number."""
    if header is None:
        return None
    seconds = float(header) if _DECIMAL.fullmatch(header) else 0.0
    if not 0 < seconds < math.inf:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER}: must be a positive number of seconds, such as 2.5",
            param=TIMEOUT_HEADER,
        )
    return seconds


def read_deadline(caller: Caller, deadline_ms: int | None) -> float | None:
    """Seconds to the first token: the smaller of header and body, or None without either."""
    wishes = [caller.timeout_s, None if deadline_ms is None else deadline_ms / 1000]
    return min((wish for wish in wishes if wish is not None), default=None)


def read_priority(tenant: Tenant, wish: str | None) -> Priority:
    """The tenant's class, or the lower one that the request asks for.

    Raises InvalidRequest for a higher one.
    """
    if wish is None:
        return tenant.priority
    priority = Priority[wish.upper()]
    if priority < tenant.priority:
        raise InvalidRequest(
            f"priority: {wish} is above {tenant.priority.name.lower()}, the highest that this "
            "tenant may ask for",
            param="priority",
        )
    return priority


def salt_for(tenant: Tenant, salt: str) -> str:
    """What a request's cached prefixes are shared under.

    The tenant's name stands before the first ``=``, where no client can write, and is empty for
    what is shared with other tenants. Names have no ``=``, so no two pairs give the same text.
    """
    name = tenant.name if tenant.private_cache else ""
    return f"{name}={salt}" if name or salt else ""
