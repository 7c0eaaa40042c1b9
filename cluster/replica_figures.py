"""How replicas stand, by what routers that are there say of them.

Owns the definitions; whatever a router has counted of requests is ``figures``. What is not known is
None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chairlift.cluster.protocol import ENDLESS, LoadReport
from chairlift.cluster.telemetry import ReplicaState, Report

__all__ = ["ReplicaFigures", "replica_figures"]


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """A replica now, by its newest load report; all None but ``live`` while there is none.

    Attributes:
        live: a router can send it requests.
        age_s: of the report.
        running, waiting: sequences with and without a seat; ``seats``: how many there are.
        kv_use: share of the KV cache's blocks that are used.
        preemptions: since the replica started.
        prefix_hit_share: of prompt tokens that were looked up, since it started.
        draining: it takes no requests any more.
        recomputed_share: of the tokens that it has computed since it started, those that it had
            computed before, for preemption had taken them.
        steps_left: until its KV cache is full if nobody ends before; None also where all that runs
            fits at its greatest length.
    """

    live: bool
    age_s: float | None
    running: int | None
    waiting: int | None
    seats: int | None
    kv_use: float | None
    preemptions: int | None
    prefix_hit_share: float | None
    draining: bool | None
    recomputed_share: float | None
    steps_left: int | None


def replica_figures(present: list[tuple[Report, float]]) -> dict[str, ReplicaFigures]:
    """Each as the router knows it that has its newest report; live if any router says so."""
    seen: dict[str, list[ReplicaState]] = {}
    for report, silent_s in present:
        for replica_id, state in report.replicas.items():
            age_s = None if state.age_s is None else state.age_s + silent_s
            seen.setdefault(replica_id, []).append(replace(state, age_s=age_s))
    return {replica_id: _replica(seen[replica_id]) for replica_id in sorted(seen)}


def _replica(states: list[ReplicaState]) -> ReplicaFigures:
    live = any(state.live for state in states)
    seats = max((state.seats for state in states if state.seats is not None), default=None)
    known = [
        (state.load, state.age_s)
        for state in states
        if state.load is not None and state.age_s is not None
    ]
    if not known:
        return ReplicaFigures(live, None, None, None, seats, *(None,) * 6)
    load, age_s = max(known, key=_newness)
    return ReplicaFigures(
        live=live,
        age_s=age_s,
        running=load.running,
        waiting=load.waiting,
        seats=seats,
        kv_use=_share(load.blocks_used, load.blocks_total),
        preemptions=load.preemptions,
        prefix_hit_share=_share(load.cache_hits, load.cache_queries),
        draining=load.draining,
        recomputed_share=_share(load.tokens_recomputed, load.tokens_computed),
        steps_left=None if load.steps_left >= ENDLESS else load.steps_left,
    )


def _newness(known: tuple[LoadReport, float]) -> tuple[int, float]:
    load, age_s = known
    return load.stamp, -age_s


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
