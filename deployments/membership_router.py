"""The Ray Serve request router that turns membership pushes into ``Membership`` updates.

Serve pickles this class by value into every process that holds a handle, so it imports what it
shares with that process inside its methods.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

__all__ = ["MembershipRouter"]


class MembershipRouter(RequestRouter):  # type: ignore[misc]  # ray ships no types
    """Learns of replicas; takes no part in the path of a request."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve in each process that holds a handle, whenever replicas change."""
        from chairlift.deployments.membership import Member, process_membership

        super().update_replicas(replicas)
        process_membership().publish(
            {
                replica.replica_id.unique_id: Member(**replica.replica_metadata)
                for replica in replicas
                if "endpoint" in replica.replica_metadata
            }
        )

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All of them: only Serve's own occasional unary calls come this way."""
        return [candidate_replicas]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: Any, result: Any
    ) -> None:
        """Nothing is learned from Serve's own calls."""
