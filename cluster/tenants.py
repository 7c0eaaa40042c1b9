"""Who is served: tenants, their share and their limits, found from API keys.

Owns the type and the look-up. Keys are known by their SHA-256 only; a key is long and random, so
a plain hash cannot be guessed back. It knows neither HTTP nor what the limits are enforced with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chairlift.cluster.errors import Unauthorized
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


def hash_key(key: str) -> str:
    """How a key stands in a configuration: ``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class Tenants:
    """All tenants of a service.

    Args:
        by_key: hash of a key → its tenant.
        keyless: who is served without a key; None to refuse.
    """

    def __init__(self, by_key: Mapping[str, Tenant], keyless: Tenant | None) -> None:
        self._by_key = dict(by_key)
        self._keyless = keyless
        named = {tenant.name: tenant for tenant in by_key.values()}
        self._by_name = named if keyless is None else named | {keyless.name: keyless}

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._by_name.values())

    def find(self, key: str | None) -> Tenant:
        """Whose key this is; raises Unauthorized. Any key will do where none are configured."""
        if not self._by_key and self._keyless is not None:
            return self._keyless
        if key is None:
            if self._keyless is None:
                raise Unauthorized("an API key is needed: Authorization: Bearer …")
            return self._keyless
        # A dictionary look-up by hash: what its time tells of a hash tells nothing of a key.
        tenant = self._by_key.get(hash_key(key))
        if tenant is None:
            raise Unauthorized("the API key is not known", code="invalid_api_key")
        return tenant
