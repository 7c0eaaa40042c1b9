"""Virtual token counters: how much service each tenant has had, in proportion to its weight.

Owns the arithmetic of fair sharing; who is served next by it is the business of the queues, in
routers and in engines alike. Pure: no clock, no I/O.

The idea is that of Sheng et al., "Fairness in Serving Large Language Models" (2024): charge a
tenant for prompt and output tokens when they are served, serve the backlogged tenant with the
least, and lift who comes back from idleness, so that nobody saves up service. To what it is lifted
is the idea of start-time fair queueing (Goyal et al., 1996): the value that the last one had who
was chosen, the virtual time of the class. So what was served while nobody had to wait is no debt.
Not quite to it: a tenant that stays below its share comes in bursts, and what little it has saved
lets a burst through at once.

    value = (own + others' service) / weight + lift
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BURST", "INPUT_WEIGHT", "OUTPUT_WEIGHT", "VirtualCounters", "gap_bound", "service"]

BURST = 4
"""Requests of the usual size whose service a tenant can have saved up when it comes back."""

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""What one token costs: a prompt token that had to be computed, and an output token."""


def service(input_tokens: float, output_tokens: float) -> float:
    """What these tokens count for."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens


def gap_bound(longest_prompt: int, tokens_in_flight: int) -> float:
    """How far the service of two backlogged tenants of weight 1 may be apart.

    Args:
        longest_prompt: tokens of the longest prompt, L.
        tokens_in_flight: output tokens that can be under way in one batch, M.
    """
    return 2 * max(INPUT_WEIGHT * longest_prompt, OUTPUT_WEIGHT * tokens_in_flight)


@dataclass(slots=True)
class _Account:
    weight: float = 1.0
    own: float = 0.0
    others: float = 0.0
    lift: float = 0.0
    arrivals: float = 0.0

    @property
    def value(self) -> float:
        return (self.own + self.others) / self.weight + self.lift


class VirtualCounters:
    """One account a tenant; those who never came have the value 0."""

    def __init__(self, burst: int = 0) -> None:
        """``burst``: an idle tenant saves up the service of so many usual requests at most."""
        self._burst = burst
        self._accounts: dict[str, _Account] = {}
        self._times: dict[int, float] = {}
        # Over all accounts, so that nobody has to add them up; exact, for services are whole.
        self._own = self._arrivals = 0.0
        self._fallen: set[str] = set()

    def value(self, tenant: str, ahead: float = 0.0) -> float:
        """As if it had been served ``ahead`` more."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.value + ahead / account.weight

    def arrive(self, tenant: str, weight: float, priority: int, *, waits: bool) -> None:
        """A request comes, and lifts its tenant if that has nothing else waiting in the class.

        Args:
            tenant: whose it is.
            weight: of the tenant, from now on.
            priority: its class.
            waits: the tenant has something waiting there.
        """
        account = self._account(tenant)
        if weight > account.weight:
            self._fallen.add(tenant)
        account.weight = weight
        account.arrivals += 1
        self._arrivals += 1
        if not waits:
            saved = self._burst * self._usual_service() / weight
            account.lift += max(0.0, self._times.get(priority, 0.0) - saved - account.value)

    def chosen(self, tenant: str, priority: int) -> None:
        """It is served next in its class; to be told before it is charged."""
        self._times[priority] = max(self._times.get(priority, 0.0), self.value(tenant))

    def charge(self, tenant: str, input_tokens: float = 0.0, output_tokens: float = 0.0) -> None:
        """It was served these tokens; negative numbers give back."""
        served = service(input_tokens, output_tokens)
        if served < 0:
            self._fallen.add(tenant)
        self._account(tenant).own += served
        self._own += served

    def set_others(self, tenant: str, others: float, lift: float) -> None:
        """What others have served it in all, and the highest lift that they know."""
        account = self._account(tenant)
        if others < account.others:
            self._fallen.add(tenant)
        account.others = others
        account.lift = max(account.lift, lift)

    def take_fallen(self) -> set[str]:
        """Tenants whose value may have fallen since the last time; all others' only grew."""
        fallen, self._fallen = self._fallen, set()
        return fallen

    def own(self, tenant: str) -> float:
        """Service charged here."""
        return self._account(tenant).own

    def lift(self, tenant: str) -> float:
        return self._account(tenant).lift

    def tenants(self) -> list[str]:
        """All that ever came."""
        return list(self._accounts)

    def state(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "accounts": {
                tenant: [each.weight, each.own, each.others, each.lift, each.arrivals]
                for tenant, each in sorted(self._accounts.items())
            },
            "times": sorted(map(list, self._times.items())),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of ``state``. Raises LookupError, TypeError or ValueError for a wrong one."""
        accounts = {}
        for tenant, values in state["accounts"].items():
            weight, own, others, lift, arrivals = map(float, values)
            accounts[tenant] = _Account(weight, own, others, lift, arrivals)
        times = {int(priority): float(value) for priority, value in state["times"]}
        self._accounts, self._times, self._fallen = accounts, times, set(accounts)
        self._own = sum(each.own for each in accounts.values())
        self._arrivals = sum(each.arrivals for each in accounts.values())

    def _usual_service(self) -> float:
        """Of one request, in the mean of all that came."""
        return self._own / self._arrivals if self._arrivals else 0.0

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        return account
