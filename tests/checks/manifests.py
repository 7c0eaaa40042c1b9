"""Checks the manifests of clusters, and the Dockerfile, against Chairlift's own settings.

    PYTHONPATH=tests python -m checks.manifests [--write]

Each overlay is rendered and validated as a whole; so are the files for ``ray up``. ``--write``
writes those that are made from others: the alert rules, and the copy of the dashboard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from checks.cluster_facts import MANIFESTS, Facts, read_facts
from checks.cluster_rules import check_cluster
from checks.cluster_schemas import check_schemas
from checks.cluster_stack import Stack
from checks.dockerfile import FILE, check_dockerfile
from checks.kuberay_rules import check_kuberay
from checks.kustomize import KustomizeError, load_all, render
from checks.ray_up import check_ray_up
from checks.service_rules import check_service

__all__ = ["OVERLAYS", "check_stack", "main"]

OVERLAYS = ("cpu", "gpu", "production")
ALTERNATIVES = ("overlays/gpu/weights-s3.yaml", "overlays/gpu/weights-gcs.yaml")
"""For ``overlays/gpu/weights.yaml``."""


def check_stack(stack: Stack, facts: Facts) -> Iterator[str]:
    """A line for everything that is wrong with what an overlay makes."""
    schema_faults = list(check_schemas(stack))
    yield from schema_faults
    if not schema_faults:  # for the rules rely on the shape of what they look at
        yield from check_kuberay(stack)
        yield from check_cluster(stack, facts)
        yield from check_service(stack, facts)


def _check_all(root: Path, facts: Facts) -> Iterator[str]:
    folder = root / MANIFESTS
    for name in OVERLAYS:
        where = f"{MANIFESTS}/overlays/{name}"
        try:
            objects = render(folder / "overlays" / name)
        except KustomizeError as error:
            yield str(error)
            continue
        yield from (f"{where}: {fault}" for fault in check_stack(Stack(name, objects), facts))
        for other in ALTERNATIVES if name == "gpu" else ():
            rest = [each for each in objects if each["kind"] != "PersistentVolumeClaim"]
            claims = [
                {**each, "metadata": {**each["metadata"], "namespace": "chairlift"}}
                if each["kind"] == "PersistentVolumeClaim"
                else each
                for each in load_all(folder / other)
            ]
            stack = Stack(other, rest + claims)
            yield from (f"{MANIFESTS}/{other}: {fault}" for fault in check_stack(stack, facts))
    yield from check_ray_up(folder / "ray-up", facts)
    text = (root / FILE).read_text(encoding="utf-8")
    yield from check_dockerfile(root, text, facts.paths)


def _write(root: Path, facts: Facts) -> None:
    folder = root / MANIFESTS / "monitoring"
    (folder / "dashboard.json").write_text(facts.dashboard, encoding="utf-8")
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "chairlift",
            "labels": {"app.kubernetes.io/part-of": "chairlift"},
        },
        "spec": facts.alerts,
    }
    text = yaml.safe_dump(rule, sort_keys=False, allow_unicode=True, width=120)
    head = "# Written by `python -m checks.manifests --write` from the Guard's policy.\n"
    (folder / "alerts.yaml").write_text(head + text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    root = Path(__file__).parents[2]
    facts = read_facts(root)
    if "--write" in arguments:
        _write(root, facts)
    violations = list(_check_all(root, facts))
    for violation in violations:
        print(violation)
    print(f"manifests: {len(violations)} violations in {len(OVERLAYS)} overlays")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
