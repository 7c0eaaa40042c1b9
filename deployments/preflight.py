"""What must hold before anything is started: one clear line for what does not.

Owns the checks that would otherwise fail minutes later and deep inside: the port, the model's
files, the memory.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.errors import ConfigError, StartupError
from chairlift.cluster.machine import read_memory
from chairlift.cluster.model_files import read_spec, resolve_model, weight_bytes
from chairlift.cluster.model_spec import ModelSpec
from chairlift.deployments.reload import check_reload

__all__ = ["Checked", "check_memory", "check_port", "preflight", "preflight_reload"]

FLOAT32_BYTES = 4
PROCESS_BYTES = 350 * 1024**2
"""torch and Python of one worker, measured resident size without weights."""
CLUSTER_BYTES = 900 * 1024**2
"""Ray's own processes and one router, measured resident size."""
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks found out on the way."""

    config: ServiceConfig
    spec: ModelSpec


def preflight(config: ServiceConfig) -> Checked:
    """Check everything; returns the configuration with an absolute model path.

    Raises:
        StartupError: one line that says what to do.
    """
    check_port(config.http.host, config.http.port)
    config = _with_resolved_model(config)
    spec = read_spec(Path(config.model.path))
    check_memory(config, spec, read_memory().available)
    return Checked(config, spec)


def preflight_reload(config: ServiceConfig, running: Checked) -> Checked:
    """Check what is to replace a configuration that runs; as ``preflight``."""
    config = _with_resolved_model(config)
    check_reload(running.config, config)
    check_memory(config, running.spec, read_memory().available, running.config.workers.replicas)
    return Checked(config, running.spec)


def _with_resolved_model(config: ServiceConfig) -> ServiceConfig:
    path = str(resolve_model(config.model.path).resolve())
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def check_port(host: str, port: int) -> None:
    """Raises ConfigError when the address cannot be listened on."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from None
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error.strerror}); "
                "stop what uses it or choose another with --port"
            ) from None


def check_memory(config: ServiceConfig, spec: ModelSpec, available: int, running: int = 0) -> None:
    """Raises StartupError when weights, cache and processes cannot fit into ``available`` bytes.

    ``running``: replicas that run already, and with them all but the other replicas.
    """
    cache = config.engine.kv_memory
    least_cache = (
        spec.kv_bytes_per_token(FLOAT32_BYTES) * config.engine.block_size
        if cache == "auto"
        else cache
    )
    simulated = config.engine.simulated_step_ms is not None
    replica = PROCESS_BYTES + (0 if simulated else weight_bytes(spec) + least_cache)
    more = config.workers.replicas - running
    needed = (0 if running else CLUSTER_BYTES) + more * replica
    if more > 0 and needed > available:
        raise StartupError(
            f"too little memory: {more} {'more ' if running else ''}replica(s) of {spec.name} need "
            f"about {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB are free; use fewer "
            "--replicas, a smaller --kv-memory or a smaller model"
        )
