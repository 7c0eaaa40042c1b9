"""One router's side of the exchange of what tenants have used (``cluster.exchange``).

Owns what was last heard of the other routers, and makes differences of it. It knows no Hub and no
message: somebody sends ``uses``, and hands in the replies that come.

A Hub that was started anew knows nothing at first, and then hears of each router all that it has
ever counted. That is nothing new, so for ``SETTLE_S`` after the numbers fell nothing is believed
to have grown. A router's own first seconds are alike, but for the fair shares: there, what the
others have served since they started is just what it has to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from chairlift.cluster.exchange import NOTHING_USED, TenantUse
from chairlift.cluster.fairness import VirtualCounters
from chairlift.router.admission import Admission

__all__ = ["SharedUse"]

SETTLE_S = 10.0
"""By then each router has been heard of, or has departed."""


class Waiting(Protocol):
    """What has to be known of the queue."""

    def queued_of(self, tenant: str, /) -> int: ...


class SharedUse:
    """Tells what this router's tenants have used, and applies what they have used elsewhere."""

    def __init__(self, counters: VirtualCounters, admission: Admission, queue: Waiting) -> None:
        self._counters = counters
        self._admission = admission
        self._queue = queue
        self._heard: Mapping[str, TenantUse] = {}
        self._heard_at: float | None = None
        self._service: dict[str, float] = {}
        self._settled_at: float | None = None
        self._restarted = False

    def uses(self, now: float) -> dict[str, TenantUse]:
        """All that there is to say; to be called for each exchange, whether it succeeds or not.

        What tenants have open elsewhere is forgotten when nothing has been heard for long.
        """
        if self._heard_at is not None and now - self._heard_at > SETTLE_S:
            for tenant in self._heard:
                self._admission.used_elsewhere(tenant, 0, 0, 0, now)
        return {
            tenant: TenantUse(
                service=self._counters.own(tenant),
                prompt_tokens=use.prompt_tokens,
                output_tokens=use.output_tokens,
                lift=self._counters.lift(tenant),
                open_requests=use.open_requests,
                queued=self._queue.queued_of(tenant),
            )
            for tenant, use in self._admission.used().items()
        }

    def apply(self, others: Mapping[str, TenantUse], now: float) -> None:
        """Take in what all other routers said, added up."""
        if self._settled_at is None:
            self._settled_at = now + SETTLE_S
        elif _fell(self._heard, others):
            self._settled_at, self._restarted = now + SETTLE_S, True
        settled = now >= self._settled_at
        self._restarted = self._restarted and not settled
        for tenant in self._heard.keys() | others.keys():
            before, use = self._heard.get(tenant, NOTHING_USED), others.get(tenant, NOTHING_USED)
            if not self._restarted:
                known = self._service.get(tenant, 0.0) + use.service - before.service
                self._service[tenant] = known
                self._counters.set_others(tenant, known, use.lift)
            self._admission.used_elsewhere(
                tenant,
                use.prompt_tokens - before.prompt_tokens if settled else 0.0,
                use.output_tokens - before.output_tokens if settled else 0.0,
                use.open_requests,
                now,
            )
        self._heard, self._heard_at = others, now


def _fell(before: Mapping[str, TenantUse], after: Mapping[str, TenantUse]) -> bool:
    """Whether there is a number that can only grow, and did not."""
    return any(
        now.prompt_tokens < use.prompt_tokens or now.output_tokens < use.output_tokens
        for use, now in ((use, after.get(name, NOTHING_USED)) for name, use in before.items())
    )
