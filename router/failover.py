"""Whether a request whose replica was lost may go on elsewhere.

Owns the three bounds that keep one request from taking down replica after replica: how often it
may move, how much of a tenant may move, and that two replicas may not die of it. Pure but for the
budget that it counts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chairlift.cluster.errors import ReplicaLost, RequestError, SuspectRequest
from chairlift.router.retry_budget import RetryBudget

__all__ = ["Failover", "Fate", "Stranded"]

DEATHS = 2
"""Replicas that died while they ran a request, after which it is not tried on another one."""


class Fate(enum.Enum):
    """What became of a replica that was lost."""

    BACK = "back"
    """It had not died: a connection broke, or it was stopped for a while."""
    DEAD = "dead"
    UNKNOWN = "unknown"
    """There has been no time to look."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """Losses of one request.

    Attributes:
        lost: ids of the replicas that were lost while they ran it, the last one included; "" for
            one that did not die, but failed for certain.
        tenant: whose request it is.
        reason: of the last loss.
        counts: it is a move of its own; not if another part of the request moved for the same
            loss.
    """

    lost: Sequence[str]
    tenant: str
    reason: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Failover:
    """The bounds.

    Attributes:
        max_moves: of one request.
        budget: of each tenant.
        fate: of a replica.
    """

    max_moves: int
    budget: RetryBudget
    fate: Callable[[str], Fate]

    def is_open(self, stranded: Stranded) -> bool:
        """Whether it depends on what is not known yet if the request is suspect."""
        certain = self._deaths(stranded, Fate.DEAD)
        return certain < DEATHS <= certain + self._deaths(stranded, Fate.UNKNOWN)

    def judge(self, stranded: Stranded, now: float) -> RequestError | None:
        """Why a request may not move again; None when it may, and then the move is counted.

        What is not known counts as a death. ``now``: seconds of the router's clock.
        """
        deaths = self._deaths(stranded, Fate.DEAD) + self._deaths(stranded, Fate.UNKNOWN)
        if deaths >= DEATHS:
            return SuspectRequest(
                f"{DEATHS} replicas died while they ran this request, so it is not tried again"
            )
        if len(stranded.lost) > self.max_moves:
            return ReplicaLost(
                f"the replica that ran this request is gone ({stranded.reason}), and it moved "
                f"{self.max_moves} times already",
                code="moves_exhausted",
            )
        if stranded.counts and not self.budget.allow_move(stranded.tenant, now):
            return ReplicaLost(
                f"the replica that ran this request is gone ({stranded.reason}), and too many of "
                "the tenant's requests moved within a minute",
                code="retry_budget",
            )
        return None

    def _deaths(self, stranded: Stranded, fate: Fate) -> int:
        replicas = {replica_id for replica_id in stranded.lost if replica_id}
        failures = stranded.lost.count("") if fate is Fate.DEAD else 0
        return failures + sum(self.fate(replica_id) is fate for replica_id in replicas)
