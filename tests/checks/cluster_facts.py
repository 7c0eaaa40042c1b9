"""What manifests are compared with: Chairlift's own settings, versions and files.

Owns where each fact has its one home. Modules that import Ray are parsed, not imported.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.ray_flags import CLUSTER_FLAGS
from chairlift.deployments.alerts import alert_rules
from chairlift.deployments.openapi_paths import OPERATIONS
from checks.dockerfile import Image, read_image

__all__ = ["MANIFESTS", "Facts", "read_facts"]

MANIFESTS = Path("cluster/manifests")
README = "cluster/manifests/README.md"
DASHBOARD = Path("deployments/grafana/dashboard.json")
RAY_PATHS: Mapping[str, int] = {"/api/gcs_healthz": 8265, "/api/local_raylet_healthz": 52365}
"""Of Ray itself, for probes, and the ports where it answers them: the head's dashboard, and the
agent of each node."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The truth.

    Attributes:
        version: Chairlift's.
        ray_version: that was tested.
        flags: of Ray, for every process of a cluster.
        image: as the Dockerfile makes it.
        secrets: those that the README says how to create, with their keys.
        application: its name for Serve.
        drain_s: what a router that leaves gives to requests.
        paths: of HTTP that can be got.
        alerts: rules for Prometheus, as they are written.
        dashboard: for Grafana.
    """

    version: str
    ray_version: str
    flags: Mapping[str, str]
    image: Image
    secrets: Mapping[str, frozenset[str]]
    application: str
    drain_s: float
    paths: frozenset[str]
    alerts: Any
    dashboard: str
    image_name: str = "chairlift"
    readme: str = README


def read_facts(root: Path) -> Facts:
    """Those of the repository."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (root / "constraints.txt").read_text(encoding="utf-8")
    pin = re.search(r"^ray==(\S+)$", pins, re.MULTILINE)
    return Facts(
        version=project["version"],
        ray_version=pin[1] if pin else "?",
        flags=CLUSTER_FLAGS,
        image=read_image(root),
        secrets=_documented_secrets(root / README),
        application=_constant(root / "deployments/application.py", "APPLICATION"),
        drain_s=_constant(root / "deployments/router_group.py", "DRAIN_TIMEOUT_S"),
        paths=frozenset(each.path for each in OPERATIONS if each.method == "get"),
        alerts=yaml.safe_load(alert_rules(load_policy())),
        dashboard=(root / DASHBOARD).read_text(encoding="utf-8"),
    )


def _constant(module: Path, name: str) -> Any:
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{module} has no {name}")


def _documented_secrets(readme: Path) -> dict[str, frozenset[str]]:
    """From the commands ``kubectl create secret``."""
    secrets = {}
    for text in re.findall(
        r"kubectl create secret ((?:.|\\\n)*?)(?<!\\)\n", readme.read_text(encoding="utf-8")
    ):
        kind, name, *options = shlex.split(text.replace("\\\n", " "))
        keys = {
            option.split("=")[1].rpartition("/")[2]
            for option in options
            if option.startswith("--from-")
        }
        secrets[name] = frozenset(keys or ({"tls.crt", "tls.key"} if kind == "tls" else ()))
    return secrets
