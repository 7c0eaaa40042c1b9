"""What a kustomization comes to, for the part of kustomize that the manifests use.

Owns resources, images, namespace, JSON patches and ConfigMaps from files; whatever else a
kustomization says is refused, so that nothing is passed over. A test compares it with kustomize
where that is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

__all__ = ["KustomizeError", "Tree", "apply", "load_all", "render"]

Tree: TypeAlias = dict[str, Any]

FILE = "kustomization.yaml"
KNOWN = {
    *("apiVersion", "kind", "namespace", "resources", "images", "patches"),
    *("configMapGenerator", "generatorOptions"),
}
OF_NO_NAMESPACE = {"Namespace", "PersistentVolume"}


class KustomizeError(ValueError):
    """A kustomization that cannot be followed; says where and why."""


def load_all(path: Path) -> list[Any]:
    """The documents of a file, with nothing shared between them or inside them."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise KustomizeError(f"{path}: {error}") from None
    # Anchors make one object stand in many places; a patch is meant for one of them.
    return [json.loads(json.dumps(each, default=str)) for each in documents if each is not None]


def render(folder: Path) -> list[Tree]:
    """All objects, in the order in which they are named. Raises KustomizeError."""
    (tree,) = load_all(folder / FILE)
    if unknown := sorted(set(tree) - KNOWN):
        raise KustomizeError(f"{folder / FILE}: {', '.join(unknown)}: not followed by this check")
    objects = [each for name in tree.get("resources", []) for each in _resource(folder / name)]
    objects += [_config_map(folder, each) for each in tree.get("configMapGenerator", [])]
    if "configMapGenerator" in tree and not tree.get("generatorOptions", {}).get(
        "disableNameSuffixHash"
    ):
        raise KustomizeError(f"{folder / FILE}: generatorOptions: disableNameSuffixHash is wanted")
    for patch in tree.get("patches", []):
        _patch(folder, patch, objects)
    for image in tree.get("images", []):
        for container in _containers(objects):
            _rename(container, image)
    if "namespace" in tree:
        for each in objects:
            if each["kind"] not in OF_NO_NAMESPACE:
                each["metadata"]["namespace"] = tree["namespace"]
    return objects


def _resource(path: Path) -> list[Tree]:
    return render(path) if path.is_dir() else load_all(path)


def _config_map(folder: Path, wanted: Mapping[str, Any]) -> Tree:
    metadata = {"name": wanted["name"], **wanted.get("options", {})}
    data = {name: (folder / name).read_text(encoding="utf-8") for name in wanted["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patch(folder: Path, patch: Mapping[str, Any], objects: list[Tree]) -> None:
    where, target = folder / patch["path"], patch["target"]
    found = [
        each
        for each in objects
        if each["kind"] == target["kind"] and each["metadata"]["name"] == target["name"]
    ]
    if not found:
        raise KustomizeError(f"{where}: there is no {target['kind']} {target['name']}")
    (operations,) = load_all(where)
    for each in found:
        for operation in operations:
            try:
                apply(operation, each)
            except (LookupError, TypeError, ValueError) as error:
                raise KustomizeError(f"{where}: {operation['path']}: {error!r}") from None


def apply(operation: Mapping[str, Any], tree: Tree) -> None:
    """Carry out one operation of RFC 6902; LookupError where there is no such place."""
    *parents, leaf = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    parent: Any = tree
    for part in parents:
        parent = parent[int(part)] if isinstance(parent, list) else parent[part]
    match operation["op"], parent:
        case "add", list() if leaf == "-":
            parent.append(operation["value"])
        case "add", list():
            parent.insert(int(leaf), operation["value"])
        case "add", dict():
            parent[leaf] = operation["value"]
        case "replace", list():
            parent[int(leaf)] = operation["value"]
        case "replace", dict() if leaf in parent:
            parent[leaf] = operation["value"]
        case "remove", list():
            del parent[int(leaf)]
        case "remove", dict():
            del parent[leaf]
        case _:
            raise LookupError(operation["op"])


def _containers(tree: Any) -> Iterator[Tree]:
    """Every container, however deep, in whatever kind of object."""
    if isinstance(tree, list):
        for each in tree:
            yield from _containers(each)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name in ("containers", "initContainers"):
                yield from value
            else:
                yield from _containers(value)


def _rename(container: Tree, image: Mapping[str, str]) -> None:
    name, _, tag = container["image"].partition(":")
    if name == image["name"]:
        tag = image.get("newTag", tag)
        container["image"] = image.get("newName", name) + (f":{tag}" if tag else "")
