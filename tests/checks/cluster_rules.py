"""What has to hold for every pod, and between pods and what selects, reaches or protects them.

Owns the rules of safety and of Kubernetes; those that compare with Chairlift's own settings are
``service_rules``'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from checks.cluster_facts import Facts
from checks.cluster_stack import Pods, Stack, quantity, selects
from checks.kustomize import Tree

__all__ = ["check_cluster"]

OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
DASHBOARD_PORT = 8265
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
CONTAINER_SECURITY: Mapping[str, object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def check_cluster(stack: Stack, facts: Facts) -> Iterator[str]:
    """A line for each rule that is broken."""
    for pods in stack.pods():
        for fault in itertools.chain(
            _check_security(pods, facts),
            _check_account(pods, stack),
            _check_volumes(pods, stack),
            _check_secrets(pods, facts),
            _check_spread(pods),
        ):
            yield f"{pods.where}: {fault}"
        for container in pods.containers:
            for fault in _check_container(container, facts):
                yield f"{pods.where}: {container['name']}: {fault}"
    yield from _check_namespace(stack)
    yield from _check_selectors(stack)
    yield from _check_budgets(stack)
    yield from _check_network(stack)
    yield from _check_service_ports(stack)


def _check_security(pods: Pods, facts: Facts) -> Iterator[str]:
    security = pods.spec.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "securityContext: it may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "securityContext.seccompProfile: RuntimeDefault is wanted"
    if pods.ray is not None:
        for name, number in (("runAsUser", facts.image.uid), ("fsGroup", facts.image.uid)):
            if security.get(name) != number:
                yield f"securityContext.{name}: {number} is the image's user"
    for name in HOST_FIELDS:
        if pods.spec.get(name):
            yield f"{name}: it opens the node"
    if pods.spec.get("enableServiceLinks") is not False:
        yield "enableServiceLinks: false is wanted; names of services are no settings"


def _check_container(container: Tree, facts: Facts) -> Iterator[str]:
    security = container.get("securityContext", {})
    for name, wanted in CONTAINER_SECURITY.items():
        if security.get(name) != wanted:
            yield f"securityContext.{name}: {wanted} is wanted"
    if security.get("privileged"):
        yield "securityContext.privileged: it opens the node"
    yield from _check_image(container, facts)
    yield from _check_resources(container.get("resources", {}))


def _check_image(container: Tree, facts: Facts) -> Iterator[str]:
    _, _, tag = container["image"].rpartition("/")[2].partition(":")
    if not tag or tag == "latest":
        yield f"image {container['image']}: a tag that says which it is, is wanted"
    elif f"/{facts.image_name}:" in f"/{container['image']}" and not tag.startswith(
        f"{facts.version}-"
    ):
        yield f"image {container['image']}: this is version {facts.version}"


def _check_resources(resources: Tree) -> Iterator[str]:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in ("cpu", "memory"):
        if name not in requests or name not in limits:
            yield f"resources: requests and limits of {name} are wanted"
        elif quantity(requests[name]) > quantity(limits[name]):
            yield f"resources: it asks for more {name} than its limit"
    for name in {*requests, *limits} - {"cpu", "memory"}:
        if requests.get(name) != limits.get(name):
            yield f"resources: {name} is to be the same in requests and limits"


def _check_account(pods: Pods, stack: Stack) -> Iterator[str]:
    """Kubernetes' own credentials are where they are used, and nowhere else."""
    name, mounts = (
        pods.spec.get("serviceAccountName"),
        pods.spec.get("automountServiceAccountToken"),
    )
    if pods.is_head and stack.scales:
        if mounts is not True or name is not None:
            yield "automountServiceAccountToken: the autoscaler needs KubeRay's account"
    elif mounts is not False:
        yield "automountServiceAccountToken: false is wanted, nothing here asks Kubernetes"
    if name is not None and not stack.has("ServiceAccount", name):
        yield f"serviceAccountName: there is no {name}"


def _check_volumes(pods: Pods, stack: Stack) -> Iterator[str]:
    volumes = {each["name"]: each for each in pods.spec.get("volumes", [])}
    templates = {
        each["metadata"]["name"]
        for owner in stack.of_kind("StatefulSet")
        if pods.where == f"StatefulSet/{owner['metadata']['name']}"
        for each in owner["spec"].get("volumeClaimTemplates", [])
    }
    mounted = {mount["name"] for each in pods.containers for mount in each.get("volumeMounts", [])}
    for name in sorted(mounted - volumes.keys() - templates):
        yield f"volumeMounts: there is no volume {name}"
    for name in sorted(volumes.keys() - mounted):
        yield f"volumes: nothing mounts {name}"
    for name, volume in volumes.items():
        if "hostPath" in volume:
            yield f"volumes: {name} opens the node's files"
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"volumes: {name} has no sizeLimit"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and not stack.has("PersistentVolumeClaim", claim):
            yield f"volumes: there is no PersistentVolumeClaim {claim}"


def _check_secrets(pods: Pods, facts: Facts) -> Iterator[str]:
    for name in sorted(set(_secrets({"spec": pods.spec, "containers": list(pods.containers)}))):
        if name not in facts.secrets:
            yield f"Secret {name}: {facts.readme} does not say how to create it"


def _secrets(tree: Any) -> Iterator[str]:
    """Names of all that is referred to."""
    if isinstance(tree, list):
        for each in tree:
            yield from _secrets(each)
    elif isinstance(tree, dict):
        if "secretName" in tree:
            yield tree["secretName"]
        for name, value in tree.items():
            if name in ("secretKeyRef", "secretRef"):
                yield value["name"]
            else:
                yield from _secrets(value)


def _check_spread(pods: Pods) -> Iterator[str]:
    constraints = pods.spec.get("topologySpreadConstraints", [])
    keys = {each["topologyKey"] for each in constraints}
    if pods.most > 1 and not {"kubernetes.io/hostname", "topology.kubernetes.io/zone"} <= keys:
        yield "topologySpreadConstraints: hosts and zones are wanted"
    for each in constraints:
        if not selects(each.get("labelSelector", {}), pods.labels):
            yield f"topologySpreadConstraints: {each['topologyKey']} selects other pods"


def _check_namespace(stack: Stack) -> Iterator[str]:
    for each in stack.of_kind("Namespace"):
        level = each["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
        if level != "restricted":
            yield f"Namespace/{each['metadata']['name']}: pod security 'restricted' is wanted"
    names = {each["metadata"].get("namespace") for each in stack.objects} - {None}
    if len(names) != 1 or not stack.has("Namespace", next(iter(names))):
        yield f"namespaces {sorted(map(str, names))}: one is wanted, and that it is made"


def _check_selectors(stack: Stack) -> Iterator[str]:
    """Whatever selects pods selects some."""
    all_labels = [pods.labels for pods in stack.pods()]
    for each in stack.objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        for path, selector in _selectors(each):
            if not any(selects(selector, labels) for labels in all_labels):
                yield f"{where}: {path} selects no pod"


def _selectors(tree: Tree) -> Iterator[tuple[str, Tree]]:
    spec = tree.get("spec", {})
    match tree["kind"]:
        case "Service":
            yield "spec.selector", {"matchLabels": spec.get("selector", {})}
        case "PodDisruptionBudget" | "PodMonitor" | "StatefulSet":
            yield "spec.selector", spec["selector"]
        case "NetworkPolicy":
            yield "spec.podSelector", spec["podSelector"]
            for direction, side in (("ingress", "from"), ("egress", "to")):
                for rule in spec.get(direction, []):
                    for peer in rule.get(side, []):
                        if "podSelector" in peer and "namespaceSelector" not in peer:
                            yield f"spec.{direction}.{side}", peer["podSelector"]


def _check_budgets(stack: Stack) -> Iterator[str]:
    """Of pods whose owner Kubernetes does not know, only a number that stays can be counted."""
    covered = set()
    for each in stack.of_kind("PodDisruptionBudget"):
        where, spec = f"PodDisruptionBudget/{each['metadata']['name']}", each["spec"]
        chosen = [pods for pods in stack.ray_pods() if selects(spec["selector"], pods.labels)]
        covered |= {pods.where for pods in chosen}
        least = spec.get("minAvailable")
        if "maxUnavailable" in spec or not isinstance(least, int):
            yield f"{where}: minAvailable as a number is wanted"
        elif not 0 < least < sum(pods.least for pods in chosen):
            yield f"{where}: minAvailable {least} of {sum(pods.least for pods in chosen)} pods"
        if any(pods.is_head for pods in chosen):
            yield f"{where}: the head is alone, its node could never be drained"
    for pods in stack.ray_pods():
        if not pods.is_head and pods.where not in covered:
            yield f"{pods.where}: no PodDisruptionBudget selects it"


def _check_network(stack: Stack) -> Iterator[str]:
    policies = list(stack.of_kind("NetworkPolicy"))
    for pods in stack.pods():
        chosen = [each for each in policies if selects(each["spec"]["podSelector"], pods.labels)]
        for direction in ("Ingress", "Egress"):
            if not any(direction in each["spec"]["policyTypes"] for each in chosen):
                yield f"{pods.where}: no NetworkPolicy closes its {direction.lower()}"
        open_ports = set(pods.ports().values()) if pods.component == "router" else set()
        for each in chosen:
            for rule in each["spec"].get("ingress", []):
                for fault in _check_ingress(rule, open_ports, pods.is_head):
                    yield f"NetworkPolicy/{each['metadata']['name']}: {pods.where}: {fault}"


def _check_ingress(rule: Tree, open_ports: set[int], is_head: bool) -> Iterator[str]:
    """From outside, routers are reached at their ports, and the head by the operator alone."""
    ports = {port.get("port") for port in rule.get("ports", [])}
    outside = [peer for peer in rule.get("from", []) if {"ipBlock", "namespaceSelector"} & {*peer}]
    operator = all(peer.get("podSelector", {}).get("matchLabels") == OPERATOR for peer in outside)
    if outside and operator and is_head and ports == {DASHBOARD_PORT}:
        return
    if (outside or not rule.get("from")) and not (ports and ports <= open_ports):
        told = ", ".join(map(str, sorted(map(str, ports)))) or "all ports"
        yield f"{told} would be open to the outside"


def _check_service_ports(stack: Stack) -> Iterator[str]:
    for each in stack.of_kind("Service"):
        selector = {"matchLabels": each["spec"].get("selector", {})}
        for pods in stack.pods():
            if not selects(selector, pods.labels):
                continue
            for port in each["spec"]["ports"]:
                if pods.ports().get(port["targetPort"]) != port["port"]:
                    where = f"Service/{each['metadata']['name']}"
                    yield f"{where}: {pods.where} has no port {port['targetPort']} {port['port']}"
