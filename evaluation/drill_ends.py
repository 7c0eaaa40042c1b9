"""What must hold after every drill: nothing runs, nothing is held, every request is accounted for.

Owns the wait for that state, and the claims about it.
"""

from __future__ import annotations

import asyncio
import time

from chairlift.evaluation.drill_client import DrillClient, ReplicaHealth
from chairlift.evaluation.drill_report import Claim, exactly
from chairlift.evaluation.metrics_page import MetricsPage

__all__ = ["claims_of_ends", "seconds_until_idle"]

ENDS = ("finished", "cancelled", "rejected", "failed")
IDLE_DEADLINE_S = 60.0
POLL_S = 0.05


async def seconds_until_idle(
    client: DrillClient, deadline_s: float, replicas: int = 1
) -> float | None:
    """Until so many replicas are live and nothing is left anywhere; None if that never comes."""
    start = time.monotonic()
    while not await _is_idle(client, replicas):
        if time.monotonic() - start > deadline_s:
            return None
        await asyncio.sleep(POLL_S)
    return time.monotonic() - start


async def claims_of_ends(client: DrillClient, replicas: int) -> list[Claim]:
    """Waits until all is over and all replicas are back, and looks at what is left."""
    await seconds_until_idle(client, IDLE_DEADLINE_S, replicas)
    health, page = await client.health(), await client.metrics()
    return [
        exactly("live replicas at the end", sum(each.live for each in health), replicas),
        exactly("sequences left at the end", sum(map(_sequences, health)), 0),
        exactly("blocks in use at the end", sum(each.blocks_used or 0 for each in health), 0),
        exactly("requests open at the end", page.total("chairlift_requests_open"), 0),
        exactly("requests started and not accounted for", _unaccounted(page), 0),
    ]


async def _is_idle(client: DrillClient, replicas: int) -> bool:
    health = await client.health()
    if sum(each.live for each in health) < replicas or not all(each.live for each in health):
        return False
    if any(_sequences(each) or each.blocks_used for each in health):
        return False
    return (await client.metrics()).total("chairlift_requests_open") == 0


def _sequences(replica: ReplicaHealth) -> int:
    return (replica.running or 0) + (replica.waiting or 0)


def _unaccounted(page: MetricsPage) -> float:
    ended = sum(page.total(f"chairlift_requests_{end}_total") for end in ENDS)
    return page.total("chairlift_requests_started_total") - ended
