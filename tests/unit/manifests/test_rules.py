"""Each rule of the manifests finds the mistake that it is there for, and names it."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from checks.cluster_facts import MANIFESTS, Facts, read_facts
from checks.cluster_stack import Stack, quantity, selects
from checks.kustomize import Tree, apply, render
from checks.manifests import OVERLAYS, check_stack
from support.manifest_mistakes import GONE, MISTAKES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read_facts(ROOT)


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Tree]]:
    return {name: render(ROOT / MANIFESTS / "overlays" / name) for name in OVERLAYS}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_breaks_no_rule(
    overlay: str, rendered: dict[str, list[Tree]], facts: Facts
) -> None:
    assert list(check_stack(Stack(overlay, rendered[overlay]), facts)) == []


def changed(objects: list[Tree], target: str, path: str, value: object) -> list[Tree]:
    """With one value put in place of another, added, or gone."""
    kind, name = target.split("/")
    (index,) = [
        index
        for index, each in enumerate(objects)
        if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    found = copy.deepcopy(objects[index])
    if value is GONE:
        apply({"op": "remove", "path": path}, found)
    elif path.endswith("/-") or not path.rpartition("/")[2].isdigit():
        apply({"op": "add", "path": path, "value": value}, found)
    else:
        apply({"op": "replace", "path": path, "value": value}, found)
    return [*objects[:index], found, *objects[index + 1 :]]


def told(objects: list[Tree], old: str, new: str) -> list[Tree]:
    """With other words in serveConfigV2."""
    objects = copy.deepcopy(objects)
    spec = next(each for each in objects if each["kind"] == "RayService")["spec"]
    assert old in spec["serveConfigV2"]
    spec["serveConfigV2"] = spec["serveConfigV2"].replace(old, new)
    return objects


@pytest.mark.parametrize(
    "mistake",
    MISTAKES,
    ids=[f"{number}-{each[2].rpartition('/')[2]}" for number, each in enumerate(MISTAKES)],
)
def test_a_mistake_is_named(
    rendered: dict[str, list[Tree]], facts: Facts, mistake: tuple[str, str, str, Any, str]
) -> None:
    overlay, target, path, value, message = mistake
    objects = changed(rendered[overlay], target, path, value)
    faults = list(check_stack(Stack(overlay, objects), facts))
    assert [fault for fault in faults if re.search(message, fault)], faults


@pytest.mark.parametrize(
    ("overlay", "old", "new", "message"),
    [
        (
            "cpu",
            "proxy_location: Disabled",
            "proxy_location: HeadOnly",
            r"proxy_location: Disabled",
        ),
        (
            "cpu",
            "deployments.app:build",
            "deployments.app:make",
            r"import_path: .*:build is wanted",
        ),
        ("cpu", "name: chairlift", "name: default", r"one is wanted, named chairlift"),
        ("cpu", "route_prefix: null", "route_prefix: /", r"route_prefix: null"),
        ("cpu", "kv_memory", "kv_memry", r"engine\.kv_memry: unknown setting"),
        ("cpu", "0.0.0.0", "127.0.0.1", r"http\.host: 127\.0\.0\.1 is not where"),
        ("cpu", "{host: 0.0.0.0}", "{host: 0.0.0.0, port: 8080}", r"routers listen at .*8080"),
        ("cpu", "cluster/token", "cluster/tokens", r"puts no tokens into Secret chairlift-cluster"),
        ("cpu", "token_file: /etc/chairlift/cluster/token", "", r"it is wanted, .*as a file"),
        ("cpu", "1GiB", "auto", r"engine\.kv_memory: a size is wanted"),
        ("cpu", "1GiB", "5GiB", r"over half of the pod's memory"),
        ("cpu", "threads: 2", "threads: auto", r"workers\.threads: auto of 2"),
        ("cpu", "device: cpu", "device: auto", r"engine\.device: cpu or cuda is wanted"),
        ("cpu", "{replicas: 2, ", "{replicas: 3, ", r"4 places are wanted, one more; there are 3"),
        ("cpu", "replicas: 2\n", "replicas: 3\n", r"at least 3 replicas, and pods for 2"),
        (
            "gpu",
            "tensor_parallel: 1",
            "tensor_parallel: 2",
            r"1 GPUs for ranks of tensor_parallel 2",
        ),
        ("gpu", "path: /models/model", "path: /data", r"nothing is mounted at /data"),
        (
            "production",
            "min_replicas: 2",
            "min_replicas: 1",
            r"at least 1 replicas, and pods for 2",
        ),
    ],
)
def test_a_wrong_configuration_is_named(
    rendered: dict[str, list[Tree]],
    facts: Facts,
    overlay: str,
    old: str,
    new: str,
    message: str,
) -> None:
    faults = list(check_stack(Stack(overlay, told(rendered[overlay], old, new)), facts))
    assert [fault for fault in faults if re.search(message, fault)], faults


@pytest.mark.parametrize(
    ("text", "number"), [("500m", 0.5), ("4Gi", 4 * 2**30), ("2", 2), (3, 3), ("1.5G", 1.5e9)]
)
def test_amounts_are_read_as_kubernetes_writes_them(text: object, number: float) -> None:
    assert quantity(text) == number


def test_what_is_no_amount_is_refused() -> None:
    with pytest.raises(ValueError, match="4 GB"):
        quantity("4 GB")


def test_selectors_take_what_kubernetes_would() -> None:
    labels = {"a": "1", "b": "2"}
    taken = [
        {},
        {"matchLabels": {"a": "1"}},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "3"]}]},
        {"matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]},
        {"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["1"]}]},
    ]
    left = [
        {"matchLabels": {"a": "1", "c": "3"}},
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]},
        {"matchExpressions": [{"key": "c", "operator": "Exists"}]},
    ]
    assert all(selects(each, labels) for each in taken)
    assert not any(selects(each, labels) for each in left)
