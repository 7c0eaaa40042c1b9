"""One rendered stack of manifests, as the rules look at it.

Owns the reading: which pods there are and how many of each, what KubeRay adds to them, which labels
a selector takes, how Kubernetes writes amounts, and the configuration that is deployed. It knows
none of the rules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from chairlift.cluster.config import ServiceConfig, build_config
from checks.kustomize import Tree

__all__ = ["Pods", "Stack", "quantity", "selects"]

RAY_SERVICE = "RayService"
OF_CONTAINERS = {
    *("args", "command", "env", "envFrom", "image", "imagePullPolicy", "resources"),
    *("securityContext", "volumeMounts"),
}
"""Of autoscalerOptions, what its container has from them."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti|)")
_UNITS = {
    **{"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of one template.

    Attributes:
        where: the object, and which part of it.
        metadata: of the template.
        spec: of the template.
        containers: those of the template, and the autoscaler that KubeRay puts beside the head.
        least: how many there are at all times.
        most: and at the most.
        ray: ``ray start`` is told these; None where Ray does not run.
        is_head: of the Ray cluster.
    """

    where: str
    metadata: Tree
    spec: Tree
    containers: Sequence[Tree]
    least: int
    most: int
    ray: Mapping[str, str] | None = None
    is_head: bool = False

    @property
    def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self.metadata.get("labels", {})
        return labels

    @property
    def component(self) -> str:
        return self.labels.get("app.kubernetes.io/component", "")

    @property
    def main(self) -> Tree:
        """The container that Ray, or whatever else the pod is for, runs in."""
        return self.containers[0]

    def ports(self) -> dict[str, int]:
        return {
            port["name"]: port["containerPort"]
            for each in self.containers
            for port in each.get("ports", [])
        }

    def limit(self, resource: str) -> float:
        """Of the main container; 0 without."""
        return quantity(self.main.get("resources", {}).get("limits", {}).get(resource, 0))

    def offers(self) -> dict[str, float]:
        """Names that the node has for Ray besides CPUs and GPUs."""
        text = (self.ray or {}).get("resources", "{}").strip("'\"` ")
        offered: dict[str, float] = yaml.safe_load(text)
        return offered

    def mounted_secret(self, path: str) -> tuple[str, str] | None:
        """Secret and key that a file of the main container comes from."""
        secrets = {
            volume["name"]: volume["secret"]["secretName"]
            for volume in self.spec.get("volumes", [])
            if "secret" in volume
        }
        for mount in self.main.get("volumeMounts", []):
            folder = mount["mountPath"].rstrip("/") + "/"
            if path.startswith(folder) and mount["name"] in secrets:
                return secrets[mount["name"]], path.removeprefix(folder)
        return None


@dataclass(frozen=True)
class Stack:
    """All objects that one overlay makes."""

    name: str
    objects: Sequence[Tree]

    def of_kind(self, *kinds: str) -> Iterator[Tree]:
        return (each for each in self.objects if each["kind"] in kinds)

    def has(self, kind: str, name: str) -> bool:
        return any(each["metadata"]["name"] == name for each in self.of_kind(kind))

    @property
    def service(self) -> Tree:
        """The RayService."""
        return next(self.of_kind(RAY_SERVICE))

    @property
    def cluster(self) -> Tree:
        cluster: Tree = self.service["spec"]["rayClusterConfig"]
        return cluster

    @functools.cached_property
    def serve_config(self) -> Tree:
        tree: Tree = yaml.safe_load(self.service["spec"]["serveConfigV2"])
        return tree

    @functools.cached_property
    def config(self) -> ServiceConfig:
        """What is deployed. Raises ConfigError."""
        return build_config(self.serve_config["applications"][0].get("args", {}), environment={})

    @property
    def scales(self) -> bool:
        return bool(self.cluster.get("enableInTreeAutoscaling"))

    def pods(self) -> list[Pods]:
        return [*self.ray_pods(), *map(_of_set, self.of_kind("StatefulSet", "Deployment"))]

    def ray_pods(self) -> Iterator[Pods]:
        where, cluster = f"{RAY_SERVICE}/{self.service['metadata']['name']}", self.cluster
        head = cluster["headGroupSpec"]
        template = head["template"]
        containers = [*template["spec"]["containers"]]
        if self.scales:
            given = {"image": containers[0]["image"], **cluster.get("autoscalerOptions", {})}
            known = {name: value for name, value in given.items() if name in OF_CONTAINERS}
            containers.append({"name": "autoscaler", **known})
        yield Pods(
            f"{where} head",
            template.get("metadata", {}),
            template["spec"],
            containers,
            least=1,
            most=1,
            ray=head["rayStartParams"],
            is_head=True,
        )
        for group in cluster.get("workerGroupSpecs", []):
            template = group["template"]
            yield Pods(
                f"{where} {group['groupName']}",
                template.get("metadata", {}),
                template["spec"],
                template["spec"]["containers"],
                least=group["minReplicas"],
                most=group["maxReplicas"],
                ray=group["rayStartParams"],
            )

    def having(self, resource: str) -> list[Pods]:
        """Ray's pods that offer it."""
        return [pods for pods in self.ray_pods() if resource in pods.offers()]

    def workers(self) -> list[Pods]:
        """Pods that ranks can be on, as Ray would place them."""
        wanted = self.config.workers.resources
        on_gpus = self.config.engine.device == "cuda"
        return [
            pods
            for pods in self.ray_pods()
            if wanted.keys() <= pods.offers().keys()
            and (pods.limit("nvidia.com/gpu") > 0 or not on_gpus)
            and pods.ray is not None
            and pods.ray.get("num-cpus") != "0"
        ]


def _of_set(each: Tree) -> Pods:
    template = each["spec"]["template"]
    replicas = each["spec"].get("replicas", 1)
    return Pods(
        f"{each['kind']}/{each['metadata']['name']}",
        template.get("metadata", {}),
        template["spec"],
        template["spec"]["containers"],
        least=replicas,
        most=replicas,
    )


def quantity(text: object) -> float:
    """``500m``, ``4Gi``, 2 … as a number; ValueError for what is none."""
    match = _AMOUNT.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is no amount")
    return float(match[1]) * _UNITS[match[2]]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these; an empty one takes everything."""
    plain = selector.get("matchLabels", {})
    return all(labels.get(name) == value for name, value in plain.items()) and all(
        _holds(each, labels) for each in selector.get("matchExpressions", [])
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
