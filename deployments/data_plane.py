"""What routers and workers of one service have in common to reach each other.

Owns nothing but that; ``cluster.cluster_token`` tells what a token is.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.cluster.cluster_token import ClusterToken

__all__ = ["DataPlane"]


@dataclass(frozen=True, slots=True)
class DataPlane:
    """Where workers listen, and what they ask of who calls.

    Attributes:
        token: of this start of the service.
        host: the address that workers listen on; None for that by which Ray knows their node.
    """

    token: ClusterToken
    host: str | None = None
