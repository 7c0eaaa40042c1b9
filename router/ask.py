"""What the door hands to the router: a request, and on what terms it is to be served.

Owns the type alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.cluster.protocol import Request
from chairlift.cluster.tenants import ANONYMOUS, Tenant

__all__ = ["Ask"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is to be run.

    Attributes:
        request: what is asked for; valid, and in the tenant's name.
        tenant: whose limits apply.
        stop: texts, none empty, that end a choice before them.
        continues: the output goes on from the prompt's text, so a space between both is kept as a
            part of it.
        deadline_s: seconds to the first token at most; None for what the request's class gives.
    """

    request: Request
    tenant: Tenant = ANONYMOUS
    stop: tuple[str, ...] = ()
    continues: bool = False
    deadline_s: float | None = None
