"""A configuration that is changed while the service runs.

Owns what differs between two configurations, which of it cannot change without a restart, what
of the rest a running router is told, and which of it a router or worker is replaced for. It
knows neither signals nor how that is done (``deployments.application``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.cluster.guard_state import Mode

__all__ = [
    "changes",
    "check_reload",
    "read_told",
    "router_version",
    "told_to_routers",
    "worker_version",
]

# Another number of ranks adds up in another order, so a request could not move between the two.
FIXED = (
    *("model", "http.host", "http.port", "grpc.enabled", "grpc.host", "grpc.port"),
    *("ray", "workers.tensor_parallel", "workers.token_file"),
    *("router.resources", "workers.resources"),
)
SWITCHES = ("http.tls", "workers.tls")
"""Whether there is one: old and new routers share a port, which is to speak one protocol, and both
speak to old and new workers."""
BASE = {"batching", "token_budget", "max_sequences"}
"""Of the engine's settings: what the Guard turns down."""
MAX_SHOWN = 60


def check_reload(old: ServiceConfig, new: ServiceConfig) -> None:
    """Raises ConfigError for a change that needs a restart."""
    for path, _, _ in _differences(_tree(old), _tree(new)):
        fixed = any(path == each or path.startswith(f"{each}.") for each in FIXED)
        if fixed or path in SWITCHES:
            raise ConfigError(f"{path}: cannot change while the service runs; restart it")


def changes(old: ServiceConfig, new: ServiceConfig) -> list[str]:
    """What differs, one line a setting; keys are not told."""
    lines = []
    for path, before, after in _differences(_tree(old), _tree(new)):
        if path.startswith(("tenants.", "operators.")):
            lines.append(f"{path}: {'changed' if after is not None else 'removed'}")
        else:
            lines.append(f"{path}: {_shown(before)} → {_shown(after)}")
    return lines


def worker_version(config: ServiceConfig) -> str:
    """Changes with every setting that a running worker replica would have to be told."""
    workers = {"replicas", "autoscaling", "health_period_s", "start_timeout_s"}
    return _digest(
        config.model_dump(mode="json", include={"model", "engine", "ledger", "tracing"}),
        config.workers.model_dump(mode="json", exclude=workers),
        config.router.fair,
    )


def router_version(config: ServiceConfig, policy: GuardPolicy) -> str:
    """Changes with every setting that a running router would have to be told.

    The Guard's are among them, for a Hub has its settings from the router that made it. So are
    those of the engine from which the Guard goes out, while there is one.
    """
    base = policy_tree = None
    if config.guard_mode is not Mode.OFF:
        base = config.engine.model_dump(mode="json", include=BASE)
        policy_tree = policy.model_dump(mode="json")
    return _digest(
        config.guard_mode.value,
        base,
        policy_tree,
        config.model_dump(mode="json", include={"model", "http", "grpc"}),
        config.model_dump(mode="json", include={"telemetry", "tracing"}),
        config.router.model_dump(mode="json", exclude={"replicas"}),
        config.workers.model_dump(mode="json", include={"tls"}),
    )


def told_to_routers(config: ServiceConfig) -> dict[str, Any]:
    """What a running router is told and takes over as it runs: who else there is, and all keys."""
    return {
        "router": config.router.model_dump(mode="json", include={"replicas"}),
        "workers": _sleep(config),
        **config.model_dump(mode="json", include={"tenants", "operators"}),
    }


def _sleep(config: ServiceConfig) -> dict[str, Any]:
    """Whether there may be no worker at all, which is all that routers have to know of them."""
    return {"autoscaling": {"min_replicas": 0}} if config.workers.least == 0 else {}


def read_told(told: Mapping[str, Any]) -> ServiceConfig:
    """As far as it was told; the rest is the defaults."""
    return ServiceConfig.model_validate(told)


def _tree(config: ServiceConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Path, old value and new value of each; None for what is not there."""
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", before, after


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _digest(*settings: object) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
