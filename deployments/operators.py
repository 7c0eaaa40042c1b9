"""Who may act by hand on a service that runs, and see what only they may.

Owns the rule: with operators, their keys say who it is. Without, it must be somebody on this
machine: neither a proxy that speaks for others, nor a web page that makes a browser here speak
for it. What they may do is not its business.
"""

from __future__ import annotations

import ipaddress

from chairlift.cluster.errors import Forbidden, Unauthorized
from chairlift.cluster.keys import KeyRing
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.request_terms import read_key

__all__ = ["Operators"]

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Operators:
    """All operators of a service."""

    def __init__(self, names: KeyRing[str] | None = None) -> None:
        """``names``: by their keys; without any, whoever is on this machine."""
        self._names = names or KeyRing({})

    def become(self, names: KeyRing[str]) -> None:
        """Know those from now on."""
        self._names = names

    def find(self, exchange: Exchange) -> str | None:
        """The operator's name; None for somebody on this machine, where none are configured.

        Raises:
            Unauthorized: it is no operator's key, or none at all, or one that has expired.
            Forbidden: it may be somebody elsewhere.
        """
        if not self._names:
            if not _is_local(exchange):
                raise Forbidden(
                    "only from this machine, unless operators are configured", code="not_local"
                )
            return None
        key = read_key(exchange.header("Authorization"))
        if key is None:
            raise Unauthorized("an operator's key is needed: Authorization: Bearer …")
        return self._names.find(key)


def _is_local(exchange: Exchange) -> bool:
    """Whether somebody on this machine asks, for themselves.

    A proxy here would make everybody local. A page whose name was made to lead here, and so counts
    as of this origin, still says that name as the host.
    """
    if any(exchange.header(name) is not None for name in _FORWARDED):
        return False
    host = exchange.header("host") or "localhost"
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _is_loopback(exchange.client) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str | None) -> bool:
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
