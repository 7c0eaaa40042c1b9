"""What KubeRay asks of a RayService beyond its schema, as of its v1.7.0.

The operator reports a broken rule as an event and then does nothing; some it cannot see at all,
such as labels with which its own services no longer find the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checks.cluster_stack import Pods, Stack

__all__ = ["check_kuberay", "start_parameters"]

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
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = [port.get("name") for port in head.get("ports", [])]
    if ports and "serve" not in ports and "serveService" not in spec:
        yield "head: ports: name all of Ray's, 'serve' among them, or none"
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "head: rayStartParams: num-cpus 0 is wanted; what serves is elsewhere"
    for group in cluster.get("workerGroupSpecs", []):
        if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            yield f"{group['groupName']}: replicas is not within minReplicas and maxReplicas"
        if group["minReplicas"] < group["maxReplicas"] and not stack.scales:
            yield f"{group['groupName']}: without the autoscaler it has one size"
        if group.get("resources") and any(key in group["rayStartParams"] for key in COUNTED):
            yield f"{group['groupName']}: resources, or those of rayStartParams, not both"
    for pods in stack.ray_pods():
        for fault in _check_pods(pods, stack):
            yield f"{pods.where}: {fault}"


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


def start_parameters(pods: Pods, address: str) -> Mapping[str, str]:
    """``ray start`` with what KubeRay adds; ``address`` is the head's."""
    limits = pods.main.get("resources", {}).get("limits", {})
    gpus = int(pods.limit("nvidia.com/gpu"))
    return {
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        "num-cpus": str(-(-int(1000 * pods.limit("cpu")) // 1000)),
        **({"memory": str(int(pods.limit("memory")))} if "memory" in limits else {}),
        **({"num-gpus": str(gpus)} if gpus else {}),
        **({"dashboard-host": "0.0.0.0"} if pods.is_head else {"address": address}),
        **(pods.ray or {}),
        "block": "true",
    }
