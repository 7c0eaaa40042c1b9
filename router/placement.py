"""Which replica gets the next request, and when a full service is worth another try.

Owns the choice, as pure functions over snapshots; it knows no streams and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.cluster.protocol import LoadReport, ReplicaInfo

__all__ = ["ReplicaView", "candidates", "max_sequence_tokens", "retry_after_s"]

SEQUENCE_TOKENS = 128
"""What a sequence counts for besides its uncomputed tokens: the output that it is still to have,
which nobody knows yet."""

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a router knows of a replica at one moment.

    Attributes:
        replica_id: the name by which the replica is a member.
        ready: it can be sent requests now.
        info: what it said of itself when its stream opened; None before the first time.
        load: its latest report; None when it is not known.
        load_age_s: seconds since the report arrived.
        sent_sequences: sequences that this router has sent and no report covers yet.
        sent_tokens: the prompt tokens of those, counted once per sequence.
        tokens_per_s: measured speed, prompt and output tokens together; None when not known.
    """

    replica_id: str
    ready: bool
    info: ReplicaInfo | None = None
    load: LoadReport | None = None
    load_age_s: float | None = None
    sent_sequences: int = 0
    sent_tokens: int = 0
    tokens_per_s: float | None = None

    @property
    def backlog(self) -> int:
        """Tokens that stand before a new request, by report and by what was sent since.

        Seats count as tokens too, so that of two replicas without a queue the emptier one wins.
        """
        load = self.load or LoadReport()
        sequences = load.running + load.waiting + self.sent_sequences
        return load.waiting_tokens + self.sent_tokens + SEQUENCE_TOKENS * sequences


def candidates(views: Sequence[ReplicaView], turn: int, stale_after_s: float) -> list[ReplicaView]:
    """Replicas to try, the best first; empty when none is ready.

    The least backlog goes first; among equals the order of ids, rotated by ``turn``. A report
    older than ``stale_after_s`` says nothing: such replicas are taken only while no replica has
    a fresh one, and then by what this router itself sent them.
    """
    ready = sorted((view for view in views if view.ready), key=lambda view: view.replica_id)
    if not ready:
        return []
    start = turn % len(ready)
    rotated = ready[start:] + ready[:start]
    fresh = [
        view for view in rotated if view.load_age_s is not None and view.load_age_s <= stale_after_s
    ]
    if fresh:
        return sorted(fresh, key=lambda view: view.backlog)
    return sorted(rotated, key=lambda view: view.sent_tokens)


def retry_after_s(views: Sequence[ReplicaView]) -> float:
    """Seconds until the shortest queue is worked off at the speed that its replica shows."""
    waits = [
        (view.load.waiting_tokens + view.sent_tokens) / view.tokens_per_s
        for view in views
        if view.ready and view.load is not None and view.tokens_per_s
    ]
    return min(max(min(waits, default=MIN_RETRY_S), MIN_RETRY_S), MAX_RETRY_S)


def max_sequence_tokens(views: Sequence[ReplicaView]) -> int | None:
    """Prompt plus output that any ready replica can hold; None when none is ready."""
    return min(
        (view.info.max_sequence_tokens for view in views if view.ready and view.info is not None),
        default=None,
    )
