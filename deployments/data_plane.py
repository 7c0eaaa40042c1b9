"""What routers and workers of one service have in common to reach each other.

Owns nothing but that; ``cluster.cluster_token`` tells what a token is.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import WorkersConfig, cluster_token

__all__ = ["DataPlane"]


@dataclass(frozen=True, slots=True)
class DataPlane:
    """Where workers listen, and what they ask of who calls.

    Attributes:
        token: of this start of the service; None where each process finds it on its node.
        host: the address that workers listen on; None for that by which Ray knows their node.
    """

    token: ClusterToken | None = None
    host: str | None = None

    def find_token(self, config: WorkersConfig) -> ClusterToken:
        """What this process shows, and asks for; may read a file. Raises ConfigError."""
        return self.token or cluster_token(config)
