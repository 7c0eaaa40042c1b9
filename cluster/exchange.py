"""What tenants have used in the whole cluster, added up from what each router says.

Owns one account a router, of numbers that count from the router's start, so that a message that
is lost or comes twice does no harm (a grow-only counter). What they mean is the routers' business.
Pure: times are passed in, and the values are plain numbers that any message can carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

__all__ = ["NOTHING_USED", "Exchange", "TenantUse"]

MAX_DEPARTED = 64
"""Routers that have gone and whose account is kept apart, should they come back."""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What a tenant has had of one router, or of several.

    Attributes:
        service: charged, in the units of ``cluster.fairness``, since the router started.
        prompt_tokens, output_tokens: since the router started; they never fall.
        lift: the highest that its counter was lifted.
        open_requests, queued: now.
    """

    service: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    lift: float = 0.0
    open_requests: int = 0
    queued: int = 0


NOTHING_USED = TenantUse()


@dataclass(frozen=True, slots=True)
class _Account:
    uses: dict[str, TenantUse]
    heard_at: float


class Exchange:
    """All routers' accounts, and one for those that are gone for good.

    A router that is not heard of for ``expire_s`` has departed: what tenants had of it stays, what
    they have open there does not count any more.
    """

    def __init__(self, expire_s: float = 10.0) -> None:
        self._expire_s = expire_s
        self._accounts: dict[str, _Account] = {}  # who was heard of longest ago comes first
        self._departed: dict[str, TenantUse] = {}

    def put(
        self, router_id: str, uses: Mapping[str, TenantUse], now: float
    ) -> dict[str, TenantUse]:
        """Take in all that a router has to say, and tell it what the others said, added up."""
        self._accounts.pop(router_id, None)
        others = _total([self._departed, *self._present(now)])
        self._accounts[router_id] = _Account(dict(uses), now)
        self._merge_departed(now)
        return others

    def _present(self, now: float) -> Iterable[Mapping[str, TenantUse]]:
        for account in self._accounts.values():
            yield _closed(account.uses) if self._has_departed(account, now) else account.uses

    def _merge_departed(self, now: float) -> None:
        departed = [
            router_id
            for router_id, account in self._accounts.items()
            if self._has_departed(account, now)
        ]
        for router_id in departed[: max(0, len(departed) - MAX_DEPARTED)]:
            account = self._accounts.pop(router_id)
            self._departed = _total([self._departed, _closed(account.uses)])

    def _has_departed(self, account: _Account, now: float) -> bool:
        return now - account.heard_at > self._expire_s


def _closed(uses: Mapping[str, TenantUse]) -> dict[str, TenantUse]:
    return {tenant: replace(use, open_requests=0, queued=0) for tenant, use in uses.items()}


def _total(accounts: Iterable[Mapping[str, TenantUse]]) -> dict[str, TenantUse]:
    total: dict[str, TenantUse] = {}
    for uses in accounts:
        for tenant, use in uses.items():
            total[tenant] = _sum(total.get(tenant, NOTHING_USED), use)
    return total


def _sum(one: TenantUse, other: TenantUse) -> TenantUse:
    return TenantUse(
        service=one.service + other.service,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        lift=max(one.lift, other.lift),
        open_requests=one.open_requests + other.open_requests,
        queued=one.queued + other.queued,
    )
