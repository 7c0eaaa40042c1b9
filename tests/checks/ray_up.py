"""The files for ``ray up``: by Ray's own schema, and the same settings as everywhere else."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from chairlift.cluster.config import ServiceConfig, build_config
from chairlift.cluster.errors import ConfigError
from checks.cluster_facts import Facts
from checks.kustomize import Tree
from checks.service_rules import check_serve_config

__all__ = ["check_ray_up"]

MACHINES = ("aws.yaml", "gcp.yaml")
SERVE = "serve.yaml"
FLAGS = "export $(chairlift env) RAY_AUTH_MODE=token"
SECRET = "./secret"
"""Made by whoever starts the cluster."""


def check_ray_up(folder: Path, facts: Facts) -> Iterator[str]:
    """A line for everything that is wrong."""
    deployed: Any = yaml.safe_load((folder / SERVE).read_text(encoding="utf-8"))
    yield from (f"{SERVE}: {fault}" for fault in check_serve_config(deployed, facts))
    try:
        config = build_config(deployed["applications"][0]["args"], environment={})
    except ConfigError as error:
        yield f"{SERVE}: args: {error}"
        return
    for name in MACHINES:
        tree: Tree = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        validator = jsonschema.Draft7Validator(_schema())
        faults = [f"{each.json_path}: {each.message}" for each in validator.iter_errors(tree)]
        yield from (f"{name}: {fault}" for fault in faults)
        if not faults:
            yield from (f"{name}: {fault}" for fault in _check_machines(folder, tree, config))


def _schema() -> Any:
    """That of Ray; found without importing it."""
    package = importlib.util.find_spec("ray")
    assert package is not None and package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "autoscaler", "ray-schema.json")
    return json.loads(path.read_text(encoding="utf-8"))


def _check_machines(folder: Path, tree: Tree, config: ServiceConfig) -> Iterator[str]:
    for remote, local in tree["file_mounts"].items():
        if local != SECRET and not (folder / local / "Makefile").exists():
            yield f"file_mounts: {remote}: {local} is not the repository"
    for path in filter(None, [config.workers.token_file]):
        if not any(path.startswith(f"{remote}/") for remote in tree["file_mounts"]):
            yield f"file_mounts: {path} is in none of them"
    if config.http.host != "0.0.0.0":
        yield f"http.host: {config.http.host} is not reached from outside"
    yield from _check_commands(tree, config)
    yield from _check_doors(tree, config)
    yield from _check_places(tree, config)


def _check_commands(tree: Tree, config: ServiceConfig) -> Iterator[str]:
    store = f"--object-store-memory={config.ray.object_store}"
    for setting in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in (each for each in tree[setting] if "ray start" in each):
            for wanted in (FLAGS, store, *(("--num-cpus=0",) if "--head" in command else ())):
                if wanted not in command:
                    yield f"{setting}: {wanted} is wanted"
            if "--dashboard-host" in command:
                yield f"{setting}: the dashboard is for the head's own machine"


def _check_doors(tree: Tree, config: ServiceConfig) -> Iterator[str]:
    ports = {config.http.port, config.grpc.address(config.http)[1]}
    for rule in tree["provider"].get("security_group", {}).get("IpPermissions", []):
        first, last = rule["FromPort"], rule["ToPort"]
        if not {first, last} <= ports or "0.0.0.0/0" in str(rule):
            yield f"security_group: {first}–{last} would be open to the outside"


def _check_places(tree: Tree, config: ServiceConfig) -> Iterator[str]:
    kinds = [
        kind
        for name, kind in tree["available_node_types"].items()
        if name != tree["head_node_type"]
    ]
    for bound, wanted in (
        ("min_workers", config.workers.least),
        ("max_workers", config.workers.most),
    ):
        ranks = sum(
            kind[bound]
            * min(kind["resources"].get(name, 0) // amount
                  for name, amount in config.workers.resources.items())
            for kind in kinds
        )  # fmt: skip
        if ranks != wanted * config.workers.tensor_parallel:
            yield f"{bound}: places for {ranks:g} ranks, {wanted} replicas are wanted"
    threads = config.workers.threads
    for kind in kinds:
        if threads == "auto" or threads > kind["resources"]["CPU"]:
            yield f"workers.threads: {threads} of {kind['resources']['CPU']} CPUs"
    if tree["max_workers"] != sum(kind["max_workers"] for kind in kinds):
        yield "max_workers: not the sum of those of all kinds"
