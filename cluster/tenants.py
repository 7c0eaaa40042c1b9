"""Who is served: tenants, their share and their limits, found from API keys.

Owns the type and the look-up, by keys where there are any (``cluster.keys``). It knows neither
HTTP nor what the limits are enforced with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chairlift.cluster.errors import Unauthorized
from chairlift.cluster.keys import KeyRing, KeyTerms, hash_key
from chairlift.cluster.protocol import Priority

__all__ = ["ANONYMOUS", "Tenant", "Tenants", "hash_key"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is served and charged.

    Attributes:
        weight: share of the service relative to others of its class; > 0.
        priority: class of its requests; a request may ask for a lower one.
        prompt_tokens_per_minute, output_tokens_per_minute: None for no limit.
        max_requests: open at the same time; None for no limit.
        private_cache: its prompts share no cached prefix with others'.
    """

    name: str
    weight: float = 1.0
    priority: Priority = Priority.INTERACTIVE
    prompt_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    max_requests: int | None = None
    private_cache: bool = False


ANONYMOUS = Tenant("anonymous")
"""Everybody, where no tenants are configured."""


class Tenants:
    """All tenants of a service.

    Args:
        by_key: hash of a key → its tenant.
        keyless: who is served without a key; None to refuse.
        terms: hash of a key → its terms, of those that have any.
    """

    def __init__(
        self,
        by_key: Mapping[str, Tenant],
        keyless: Tenant | None,
        terms: Mapping[str, KeyTerms] | None = None,
    ) -> None:
        self._keys = KeyRing(by_key, terms)
        self._keyless = keyless

    def __iter__(self) -> Iterator[Tenant]:
        by_name = {tenant.name: tenant for tenant in self._keys}
        if self._keyless is not None:
            by_name[self._keyless.name] = self._keyless
        return iter(by_name.values())

    def find(self, key: str | None) -> Tenant:
        """Whose key this is; raises Unauthorized. Any key will do where none are configured."""
        if not self._keys and self._keyless is not None:
            return self._keyless
        if key is not None:
            return self._keys.find(key)
        if self._keyless is None:
            raise Unauthorized("an API key is needed: Authorization: Bearer …")
        return self._keyless

    def become(self, others: Tenants) -> None:
        """Serve those from now on; for whom this one serves already, nothing changes."""
        self._keys, self._keyless = others._keys, others._keyless
