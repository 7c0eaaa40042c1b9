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
from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.machine import read_memory
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.deployments.memory_needs import memory_needed
from chairlift.deployments.placement import check_gpus, count_gpus, wants_gpus
from chairlift.deployments.reload import check_reload
from chairlift.deployments.stream_tls import check_stream
from chairlift.deployments.tls import make_context
from chairlift.workers.shards import check_degree
from chairlift.workers.weight_sizes import PackedSize, packed_size

__all__ = ["Checked", "check_memory", "check_port", "preflight", "preflight_reload"]

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks found out on the way."""

    config: ServiceConfig
    policy: GuardPolicy
    spec: ModelSpec
    weights: PackedSize


def preflight(config: ServiceConfig) -> Checked:
    """Check everything; returns the configuration with an absolute model path.

    Raises:
        StartupError: one line that says what to do.
    """
    check_port(config.http.host, config.http.port)
    _check_tls(config)
    policy = load_policy(config.guard.file)
    if config.grpc.enabled:
        check_port(*config.grpc.address(config.http), flag="--grpc-port")
    config = _with_resolved_model(config)
    spec = read_spec(Path(config.model.path))
    _check_ranks(config, spec)
    weights = packed_size(config.engine, spec)
    check_memory(config, spec, memory_needed(config, spec, weights), read_memory().available)
    return Checked(config, policy, spec, weights)


def preflight_reload(config: ServiceConfig, running: Checked) -> Checked:
    """Check what is to replace a configuration that runs; as ``preflight``."""
    _check_tls(config)
    policy = load_policy(config.guard.file)
    config = _with_resolved_model(config)
    check_reload(running.config, config)
    spec, replicas = running.spec, running.config.workers.most
    _check_ranks(config, spec)
    weights = packed_size(config.engine, spec)
    needed = memory_needed(config, spec, weights, replicas)
    check_memory(config, spec, needed, read_memory().available, replicas)
    return Checked(config, policy, spec, weights)


def _check_tls(config: ServiceConfig) -> None:
    if config.http.tls is not None:
        make_context(config.http.tls)
    if config.workers.tls is not None:
        check_stream(config.workers.tls)


def _check_ranks(config: ServiceConfig, spec: ModelSpec) -> None:
    check_degree(spec, config.workers.tensor_parallel)
    if wants_gpus(config):
        check_gpus(config, count_gpus())


def _with_resolved_model(config: ServiceConfig) -> ServiceConfig:
    path = str(resolve_model(config.model.path).resolve())
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def check_port(host: str, port: int, flag: str = "--port") -> None:
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
                f"stop what uses it or choose another with {flag}"
            ) from None


def check_memory(
    config: ServiceConfig, spec: ModelSpec, needed: int, available: int, running: int = 0
) -> None:
    """Raises StartupError when more bytes are needed than are available.

    ``running``: replicas that run already.
    """
    more = config.workers.most - running
    if more > 0 and needed > available:
        raise StartupError(
            f"too little memory: {more} {'more ' if running else ''}replica(s) of {spec.name} need "
            f"about {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB are free; use fewer "
            "--replicas, a smaller --kv-memory or a smaller model"
        )
