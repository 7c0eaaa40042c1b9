"""Whether what is deployed fits the pods that it is deployed on, and Chairlift's own settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.errors import ConfigError
from checks.cluster_facts import RAY_PATHS, Facts
from checks.cluster_stack import Pods, Stack, quantity

__all__ = ["check_serve_config", "check_service"]

BUILDER = "chairlift.deployments.app:build"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
EMBEDDED = "smollm2"


def check_service(stack: Stack, facts: Facts) -> Iterator[str]:
    """A line for each disagreement."""
    faults = list(check_serve_config(stack.serve_config, facts))
    yield from (f"serveConfigV2: {fault}" for fault in faults)
    try:
        config = stack.config
    except ConfigError as error:
        yield f"serveConfigV2: args: {error}"
        return
    if stack.cluster["rayVersion"] != facts.ray_version:
        yield f"rayVersion: {stack.cluster['rayVersion']}; constraints.txt has {facts.ray_version}"
    for pods in stack.ray_pods():
        for fault in itertools.chain(
            _check_flags(pods, facts),
            _check_probes(pods, config, facts),
            _check_folders(pods, config, facts),
            _check_files(pods, config, facts),
            _check_end(pods, facts),
        ):
            yield f"{pods.where}: {fault}"
    yield from _check_routers(stack, config)
    yield from _check_workers(stack, config)
    yield from _check_monitoring(stack, config, facts)


def check_serve_config(tree: Any, facts: Facts) -> Iterator[str]:
    """What Serve is told, besides the configuration itself."""
    if tree.get("proxy_location") != "Disabled":
        yield "proxy_location: Disabled is wanted; routers listen themselves"
    applications = tree.get("applications", [])
    if [each.get("name") for each in applications] != [facts.application]:
        yield f"applications: one is wanted, named {facts.application}"
        return
    (application,) = applications
    if application.get("import_path") != BUILDER:
        yield f"import_path: {BUILDER} is wanted"
    if application.get("route_prefix", "/") is not None:
        yield "route_prefix: null is wanted"


def _check_flags(pods: Pods, facts: Facts) -> Iterator[str]:
    for container in pods.containers:
        given = {each["name"]: each.get("value") for each in container.get("env", [])}
        for name, value in facts.flags.items():
            if given.get(name) != value:
                yield f"{container['name']}: env: {name} is {given.get(name)}, not {value}"
        for name in given:
            if name.startswith("CHAIRLIFT__"):
                yield f"{container['name']}: env: {name} would go over serveConfigV2"


def _check_probes(pods: Pods, config: ServiceConfig, facts: Facts) -> Iterator[str]:
    for name in PROBES:
        probe = pods.main.get(name, {}).get("httpGet")
        if probe is None:
            yield f"{name}: httpGet is wanted; KubeRay's own needs wget in the image"
            continue
        path, port = probe["path"], probe["port"]
        if path in RAY_PATHS:
            if port != RAY_PATHS[path] or (path == "/api/gcs_healthz" and not pods.is_head):
                yield f"{name}: {path} is not answered at {port} of this pod"
            continue
        if path not in facts.paths:
            yield f"{name}: there is no {path}"
        if pods.ports().get(port, port) != config.http.port or pods.component != "router":
            yield f"{name}: {path} is not answered at {port} of this pod"
        if probe.get("scheme", "HTTP") != ("HTTPS" if config.http.tls else "HTTP"):
            yield f"{name}: the scheme is not that of http.tls"
        if name != "readinessProbe":
            yield f"{name}: a router without replicas is not to be restarted"
    if pods.component == "router":
        yield from _check_patience(pods, config)


def _check_patience(pods: Pods, config: ServiceConfig) -> Iterator[str]:
    """Without replicas a router stays in service as long as requests would wait for one."""
    probe = pods.main.get("readinessProbe", {})
    lasts = probe.get("periodSeconds", 10) * (probe.get("failureThreshold", 3) - 1)
    path = probe.get("httpGet", {}).get("path")
    if path == "/health" and lasts < config.router.wait_for_replica_s:
        yield f"readinessProbe: it lasts {lasts} s, less than router.wait_for_replica_s"


def _check_folders(pods: Pods, config: ServiceConfig, facts: Facts) -> Iterator[str]:
    mounts = {mount["mountPath"]: mount for mount in pods.main.get("volumeMounts", [])}
    for folder in sorted({"/tmp", "/dev/shm", *facts.image.folders}):
        if folder not in mounts or mounts[folder].get("readOnly"):
            yield f"volumeMounts: {folder} has to be writable"
    ray = pods.ray or {}
    if ray.get("object-store-memory") != str(config.ray.object_store):
        yield f"rayStartParams: object-store-memory: {config.ray.object_store} is wanted"
    for volume in pods.spec.get("volumes", []):
        memory = volume.get("emptyDir") or {}
        if memory.get("medium") == "Memory" and (
            quantity(memory["sizeLimit"]) < config.ray.object_store
        ):
            yield f"volumes: {volume['name']} is smaller than Ray's object store"


def _check_files(pods: Pods, config: ServiceConfig, facts: Facts) -> Iterator[str]:
    """Files that the configuration names are where the pods need them."""
    files = {"workers.token_file": config.workers.token_file}
    stream, tls = config.workers.tls, config.http.tls
    is_router, is_worker = pods.component == "router", pods.component == "worker"
    if tls is not None and is_router:
        files |= {"http.tls.certificate": tls.certificate, "http.tls.key": tls.key}
        files |= {"http.tls.client_ca": tls.client_ca} if tls.client_ca else {}
    if stream is not None and (is_router or is_worker):
        end = stream.router if is_router else stream.worker
        files |= {"workers.tls.ca": stream.ca}
        files |= {"workers.tls certificate": end.certificate, "workers.tls key": end.key}
    for setting, path in files.items():
        if path is None:
            yield f"{setting}: it is wanted, for the pods have the token as a file"
            continue
        source = pods.mounted_secret(path)
        if source is None:
            yield f"{setting}: no Secret is mounted at {path}"
        elif source[1] not in facts.secrets.get(source[0], ()):
            yield f"{setting}: {facts.readme} puts no {source[1]} into Secret {source[0]}"
    model = config.model.path
    if model != EMBEDDED and (is_router or is_worker):
        mounts = [mount["mountPath"] for mount in pods.main.get("volumeMounts", [])]
        if not any(PurePosixPath(model).is_relative_to(mount) for mount in mounts):
            yield f"model.path: nothing is mounted at {model}"


def _check_end(pods: Pods, facts: Facts) -> Iterator[str]:
    if pods.is_head:
        return
    command = pods.main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if command != ["sleep", f"{facts.drain_s:g}"]:
        yield f"lifecycle.preStop: sleep {facts.drain_s:g} is wanted, as long as a router drains"
    if pods.spec.get("terminationGracePeriodSeconds", 30) <= facts.drain_s:
        yield "terminationGracePeriodSeconds: it ends before preStop has"


def _check_routers(stack: Stack, config: ServiceConfig) -> Iterator[str]:
    if config.http.host != "0.0.0.0":
        yield f"http.host: {config.http.host} is not where a Service reaches a pod"
    wanted = {"http": config.http.port, "grpc": config.grpc.address(config.http)[1]}
    slots = 0.0
    for name, amount in config.router.resources.items():
        for pods in stack.having(name):
            slots += pods.least * pods.offers()[name] // amount
            if pods.component != "router" or pods.ports() != wanted:
                yield f"{pods.where}: ports: routers listen at {wanted}"
    # While the configuration changes, one comes before one goes.
    if slots != config.router.replicas + 1:
        wanted_slots = config.router.replicas + 1
        yield f"router.replicas: {wanted_slots} places are wanted, one more; there are {slots:g}"
    services = [each for each in stack.of_kind("Service") if "clusterIP" not in each["spec"]]
    for each in services:
        if {port["name"]: port["port"] for port in each["spec"]["ports"]} != wanted:
            yield f"Service/{each['metadata']['name']}: ports: routers listen at {wanted}"


def _check_workers(stack: Stack, config: ServiceConfig) -> Iterator[str]:
    workers, engine = config.workers, config.engine
    ranks, groups = workers.tensor_parallel, stack.workers()
    if not groups:
        yield "workers: no pod offers what their ranks take"
    if not workers.resources and engine.device != "cuda":
        yield "workers.resources: without it, all ranks may be on one pod"
    if engine.device == "auto":
        yield "engine.device: cpu or cuda is wanted; auto is whatever nodes there are at the start"
    if engine.device == "cpu" and engine.kv_memory == "auto":
        yield "engine.kv_memory: a size is wanted; auto shares one machine among all replicas"
    for pods in groups:
        yield from (f"{pods.where}: {fault}" for fault in _check_worker_pod(pods, config))
    least = sum(pods.least * _places(pods, config) // ranks for pods in groups)
    most = sum(pods.most * _places(pods, config) // ranks for pods in groups)
    for number, bound, places in (("least", workers.least, least), ("most", workers.most, most)):
        if groups and places != bound:
            yield f"workers: at {number} {bound} replicas, and pods for {places:g}"
    if workers.least < workers.most and not stack.scales:
        yield "enableInTreeAutoscaling: replicas scale, and pods do not"


def _check_worker_pod(pods: Pods, config: ServiceConfig) -> Iterator[str]:
    workers, engine = config.workers, config.engine
    gpus, cpus = pods.limit("nvidia.com/gpu"), pods.limit("cpu")
    if gpus and (engine.device != "cuda" or gpus % workers.tensor_parallel):
        yield f"{gpus:g} GPUs for ranks of tensor_parallel {workers.tensor_parallel}"
    if workers.threads == "auto" or workers.threads * _places(pods, config) > cpus:
        yield f"workers.threads: {workers.threads} of {cpus:g} CPUs"
    if engine.device == "cpu" and engine.kv_memory != "auto":
        if int(engine.kv_memory) * 2 > pods.limit("memory"):
            yield "engine.kv_memory: it is over half of the pod's memory"


def _places(pods: Pods, config: ServiceConfig) -> float:
    """Ranks that one of these pods holds at once."""
    places = [pods.offers()[name] // amount for name, amount in config.workers.resources.items()]
    if config.engine.device == "cuda":
        places.append(pods.limit("nvidia.com/gpu"))
    return min(places, default=1.0)


def _check_monitoring(stack: Stack, config: ServiceConfig, facts: Facts) -> Iterator[str]:
    tls = config.http.tls is not None
    for each in stack.of_kind("PodMonitor"):
        for endpoint in each["spec"]["podMetricsEndpoints"]:
            where = f"PodMonitor/{each['metadata']['name']}"
            yield from _check_scrape(where, endpoint["path"], facts)
            if endpoint["port"] != "http" or (endpoint.get("scheme") == "https") != tls:
                yield f"{where}: port http is wanted, and the scheme of http.tls"
    yield from _check_scrape_configs(stack, tls, facts)
    yield from _check_made_files(stack, facts)


def _check_scrape_configs(stack: Stack, tls: bool, facts: Facts) -> Iterator[str]:
    names = {
        f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
        for service in stack.of_kind("Service")
        for port in service["spec"]["ports"]
    }
    for each in stack.of_kind("ScrapeConfig"):
        where, spec = f"ScrapeConfig/{each['metadata']['name']}", each["spec"]
        yield from _check_scrape(where, spec["metricsPath"], facts)
        if (spec.get("scheme") == "HTTPS") != tls:
            yield f"{where}: the scheme of http.tls is wanted"
        for target in spec["staticConfigs"][0]["targets"]:
            if target not in names:
                yield f"{where}: {target} is no Service of this stack"


def _check_made_files(stack: Stack, facts: Facts) -> Iterator[str]:
    for each in stack.of_kind("PrometheusRule"):
        if each["spec"] != facts.alerts:
            yield "PrometheusRule: not the Guard's policy; python -m checks.manifests --write"
    for each in stack.of_kind("ConfigMap"):
        if each["data"].get("dashboard.json", facts.dashboard) != facts.dashboard:
            yield "dashboard.json: not deployments/grafana's; python -m checks.manifests --write"


def _check_scrape(where: str, path: str, facts: Facts) -> Iterator[str]:
    if path not in facts.paths:
        yield f"{where}: there is no {path}"
