"""Who gets in: limits of the tenant, of this router, and of the time that there is.

Owns what each tenant has used of its limits. Refusing is immediate and has no effect; what was
let in is accounted for by ``started``, ``generated`` and ``ended``. How long a request would wait
is told to it. Pure: times are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chairlift.cluster.errors import Overloaded, RateLimited, Unavailable
from chairlift.cluster.protocol import Request
from chairlift.cluster.tenants import Tenant
from chairlift.router.token_bucket import TokenBucket

__all__ = ["Admission", "AdmissionLimits", "Backlog", "Used"]

MIN_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Of one router.

    Attributes:
        max_requests: open, streaming and waiting together.
        max_queued: requests that wait for a replica.
        max_queued_tokens: prompt tokens of those; a prompt that is longer waits alone.
    """

    max_requests: int
    max_queued: int
    max_queued_tokens: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a newcomer finds.

    Attributes:
        open_requests, queued, queued_tokens: of the whole router.
        predicted_s: time to its first token; None when nobody can tell.
        retry_after_s: tells when trying again makes sense, if it finds no room.
        waits: it would have to queue; bounds on the queue are for those alone.
    """

    open_requests: int
    queued: int
    queued_tokens: int
    predicted_s: float | None
    retry_after_s: Callable[[], float]
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Used:
    """What a tenant has had of this router since it started, and has open now."""

    prompt_tokens: int
    output_tokens: int
    open_requests: int


@dataclass(slots=True)
class _Account:
    """What a tenant has left, what it has had here, and what it has open here and elsewhere."""

    prompt: TokenBucket | None = None
    output: TokenBucket | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    open_here: int = 0
    open_elsewhere: int = 0


class Admission:
    """The limits of one router, and of its tenants across all routers.

    An account is made when a tenant first asks for something; there are as many as are configured.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._accounts: dict[str, _Account] = {}

    def check(
        self, tenant: Tenant, request: Request, deadline_s: float, backlog: Backlog, now: float
    ) -> None:
        """Let the request in, or say why not.

        Args:
            tenant: whose request it is.
            request: what is asked for.
            deadline_s: seconds within which its first token must come.
            backlog: what it finds.
            now: seconds of the clock of all these calls.

        Raises:
            RateLimited: the tenant is over a limit of its own (``tenant_requests``,
                ``tenant_prompt_tokens``, ``tenant_output_tokens``).
            Overloaded: this router is full (``router_full``, ``queue_full``, ``queue_tokens``).
            Unavailable: its deadline cannot be met (``deadline_unreachable``).
        """
        self._check_tenant(tenant, len(request.prompt), backlog.retry_after_s, now)
        self._check_room(len(request.prompt), backlog)
        predicted_s = backlog.predicted_s
        if predicted_s is not None and predicted_s > deadline_s:
            raise Unavailable(
                f"the first token would come in about {predicted_s:.1f} s, but the deadline is "
                f"{deadline_s:.1f} s; try again later, or with a longer deadline",
                code="deadline_unreachable",
                retry_after_s=max(MIN_RETRY_S, predicted_s - deadline_s),
            )

    def started(self, tenant: Tenant, prompt_tokens: int, now: float) -> None:
        """A request of it was let in."""
        account = self._account(tenant.name)
        account.open_here += 1
        account.prompt_tokens += prompt_tokens
        if account.prompt is not None:
            account.prompt.take(prompt_tokens, now)

    def generated(self, tenant: str, output_tokens: int, now: float) -> None:
        """It was given these tokens."""
        account = self._account(tenant)
        account.output_tokens += output_tokens
        if account.output is not None:
            account.output.take(output_tokens, now)

    def ended(self, tenant: str) -> None:
        """A request that had started is over, whichever way."""
        account = self._account(tenant)
        if account.open_here < 1:
            raise AssertionError(f"more requests of {tenant!r} ended than had started")
        account.open_here -= 1

    def used_elsewhere(
        self,
        tenant: str,
        prompt_tokens: float,
        output_tokens: float,
        open_requests: int,
        now: float,
    ) -> None:
        """What other routers gave it since the last time, and what it has open there now."""
        account = self._account(tenant)
        account.open_elsewhere = open_requests
        if account.prompt is not None:
            account.prompt.take(prompt_tokens, now)
        if account.output is not None:
            account.output.take(output_tokens, now)

    def open_of(self, tenant: str) -> int:
        """Requests that it has open at this router."""
        account = self._accounts.get(tenant)
        return 0 if account is None else account.open_here

    def used(self) -> dict[str, Used]:
        """What each tenant has had here; those of whom only others spoke have had nothing."""
        return {
            tenant: Used(account.prompt_tokens, account.output_tokens, account.open_here)
            for tenant, account in self._accounts.items()
        }

    def _check_tenant(
        self, tenant: Tenant, prompt_tokens: int, retry_after_s: Callable[[], float], now: float
    ) -> None:
        account = self._account(tenant.name)
        account.prompt = _bucket(account.prompt, tenant.prompt_tokens_per_minute)
        account.output = _bucket(account.output, tenant.output_tokens_per_minute)
        num_open = account.open_here + account.open_elsewhere
        if tenant.max_requests is not None and num_open >= tenant.max_requests:
            raise RateLimited(
                f"{tenant.name} has {num_open} requests open, of {tenant.max_requests}; wait for "
                "one to end",
                code="tenant_requests",
                retry_after_s=max(MIN_RETRY_S, retry_after_s()),
            )
        if account.prompt is not None:
            wait_s = account.prompt.wait_s(now, prompt_tokens)
            _check_rate(tenant, "prompt", tenant.prompt_tokens_per_minute, wait_s)
        if account.output is not None:
            wait_s = account.output.wait_s(now)
            _check_rate(tenant, "output", tenant.output_tokens_per_minute, wait_s)

    def _check_room(self, prompt_tokens: int, backlog: Backlog) -> None:
        limits, retry_after_s = self._limits, backlog.retry_after_s
        if backlog.open_requests >= limits.max_requests:
            raise Overloaded(
                f"this router holds {limits.max_requests} requests already; try again later",
                code="router_full",
                retry_after_s=retry_after_s(),
            )
        if not backlog.waits:
            return
        if backlog.queued >= limits.max_queued:
            raise Overloaded(
                f"{backlog.queued} requests wait already, of {limits.max_queued}; try again later",
                code="queue_full",
                retry_after_s=retry_after_s(),
            )
        queued_tokens = backlog.queued_tokens + prompt_tokens
        if backlog.queued_tokens and queued_tokens > limits.max_queued_tokens:
            raise Overloaded(
                f"with this prompt, {queued_tokens} tokens would wait, of "
                f"{limits.max_queued_tokens}; try again later, or with a shorter prompt",
                code="queue_tokens",
                retry_after_s=retry_after_s(),
            )

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        return account


def _bucket(bucket: TokenBucket | None, per_minute: float | None) -> TokenBucket | None:
    """The one of this rate: a new one, which is full, where the limit has changed."""
    if per_minute is None:
        return None
    return (
        bucket
        if bucket is not None and bucket.per_minute == per_minute
        else TokenBucket(per_minute)
    )


def _check_rate(tenant: Tenant, what: str, per_minute: float | None, wait_s: float) -> None:
    if wait_s > 0.0:
        raise RateLimited(
            f"{tenant.name} has used up its {per_minute:.0f} {what} tokens a minute; wait "
            f"{wait_s:.0f} s, or ask for a higher limit",
            code=f"tenant_{what}_tokens",
            retry_after_s=max(MIN_RETRY_S, wait_s),
        )
