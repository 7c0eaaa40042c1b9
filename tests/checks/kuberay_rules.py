"""What KubeRay asks of a RayService beyond its schema, by its source.

The operator reports a broken rule as an event and then does nothing; some it cannot see at all,
such as labels with which its own services no longer find the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.cluster_stack import Pods, Stack
from checks.kustomize import Tree

__all__ = ["check_kuberay"]

MAX_NAME = 47
"""Of a RayService: what it makes has longer names, of 63 letters at most."""
FIRST_WITH_TOKENS = (2, 52)
OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/created-by")
OWN_ENVIRONMENT = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_CLUSTER_NAME",
                   "RAY_enable_autoscaler_v2", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")  # fmt: skip
COUNTED = ("num-cpus", "num-gpus", "memory", "resources")


def check_kuberay(stack: Stack) -> Iterator[str]:
    """A line for each rule that is broken."""
    name, spec, cluster = stack.service["metadata"]["name"], stack.service["spec"], stack.cluster
    if len(name) > MAX_NAME or not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"RayService/{name}: a name of {MAX_NAME} letters at most is wanted"
    version = tuple(int(part) for part in re.findall(r"\d+", cluster["rayVersion"])[:2])
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "authOptions: token is wanted, else whoever reaches Ray runs code"
    elif version < FIRST_WITH_TOKENS:
        yield f"authOptions: Ray {cluster['rayVersion']} knows no tokens"
    if not spec.get("excludeHeadPodFromServeSvc"):
        yield "excludeHeadPodFromServeSvc: no router is on the head"
    yield from _check_head(stack)
    for group in cluster.get("workerGroupSpecs", []):
        yield from (f"{group['groupName']}: {fault}" for fault in _check_group(group, stack))
    for pods in stack.ray_pods():
        for fault in _check_pods(pods, stack):
            yield f"{pods.where}: {fault}"


def _check_head(stack: Stack) -> Iterator[str]:
    group = stack.cluster["headGroupSpec"]
    container = group["template"]["spec"]["containers"][0]
    ports = [port.get("name") for port in container.get("ports", [])]
    if ports and "serve" not in ports and "serveService" not in stack.service["spec"]:
        yield "head: ports: name all of Ray's, 'serve' among them, or none"
    if group["rayStartParams"].get("num-cpus") != "0":
        yield "head: rayStartParams: num-cpus 0 is wanted; what serves is elsewhere"


def _check_group(group: Tree, stack: Stack) -> Iterator[str]:
    if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
        yield "replicas is not within minReplicas and maxReplicas"
    if group["minReplicas"] < group["maxReplicas"] and not stack.scales:
        yield "without the autoscaler it has one size"
    if group.get("resources") and any(key in group["rayStartParams"] for key in COUNTED):
        yield "resources, or those of rayStartParams, not both"


def _check_pods(pods: Pods, stack: Stack) -> Iterator[str]:
    for label in OWN_LABELS:
        if label in pods.labels:
            yield f"labels: {label} is KubeRay's, its services go by it"
    for name in ("labels", "redis-password", "redis-username"):
        if name in (pods.ray or {}):
            yield f"rayStartParams: {name} is to stand elsewhere"
    for each in pods.main.get("env", []):
        if each["name"] in OWN_ENVIRONMENT:
            yield f"env: {each['name']} is set by KubeRay"
    if pods.main.get("command") or pods.main.get("args"):
        yield "command: KubeRay makes it"
    if not pods.main["name"].startswith("ray-"):
        yield "containers: the first one is to be Ray's"
    if stack.scales and pods.spec.get("restartPolicy", "Never") != "Never":
        yield "restartPolicy: the autoscaler replaces pods, nothing restarts in them"
