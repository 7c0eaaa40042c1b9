"""How ``chairlift serve`` looks at the routers that it has started.

Owns the address that they are reached at from this machine, and the way to ask them: over their
own port, as anybody would; where that speaks TLS, through Ray, for this process has neither a
client's certificate nor a name to check theirs against, and does not go without.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import urllib.request
from typing import Any, Literal

from chairlift.cluster.config import ServiceConfig

__all__ = ["OwnRouters", "own_url", "reachable"]

READY_TIMEOUT_S = 2.0
GUARD_TIMEOUT_S = 0.5


def own_url(config: ServiceConfig) -> str:
    """The address to use from this machine."""
    scheme = "http" if config.http.tls is None else "https"
    return f"{scheme}://{reachable(config.http.host, config.http.port)}"


def reachable(host: str, port: int) -> str:
    """The address to use from this machine of what listens there."""
    with contextlib.suppress(ValueError):  # a name is no address
        if ipaddress.ip_address(host).is_unspecified:
            host = "127.0.0.1"
    return f"{f'[{host}]' if ':' in host else host}:{port}"


class OwnRouters:
    """The routers of this process's service, whichever run just now."""

    def __init__(self) -> None:
        self._handle: Any = None

    def ready_replicas(self, config: ServiceConfig) -> int:
        """Live replicas as a router sees them; 0 while none answers."""
        health = self._look(config, "health", READY_TIMEOUT_S)
        return sum(replica["live"] for replica in health["replicas"]) if health else 0

    def guard_view(self, config: ServiceConfig) -> dict[str, Any] | None:
        """How the Guard stands; None where nobody can tell."""
        return self._look(config, "guard", GUARD_TIMEOUT_S)

    def _look(
        self, config: ServiceConfig, at: Literal["health", "guard"], timeout_s: float
    ) -> dict[str, Any] | None:
        if config.http.tls is not None:
            return self._ask_ray(at, timeout_s)
        return _get(f"{own_url(config)}/{at}", timeout_s)

    def _ask_ray(self, at: str, timeout_s: float) -> dict[str, Any] | None:
        try:
            if self._handle is None:
                self._handle = _routers()
            found: dict[str, Any] | None = self._handle.look.remote(at).result(timeout_s=timeout_s)
        except Exception:  # of Ray's many: there is no router yet, none any more, or none in time
            return None
        return found


def _get(url: str, timeout_s: float) -> dict[str, Any] | None:
    """The JSON object there; None where it is not to be had."""
    try:
        # The scheme is ours.
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # nosec B310
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _routers() -> Any:
    from ray import serve

    from chairlift.deployments.application import APPLICATION, ROUTERS

    handle = serve.get_deployment_handle(ROUTERS, APPLICATION)
    # For a caller without an event loop, which Serve's optimised mode takes to be there.
    handle._init(_run_router_in_separate_loop=True)
    return handle
