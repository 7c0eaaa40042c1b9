"""The commands of every container in the manifests run, as the pods' security allows them to."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.evaluation.drill_network import networks_can_be_made
from chairlift.evaluation.drill_service import wait_until
from checks.cluster_facts import MANIFESTS
from checks.cluster_stack import Stack
from checks.kustomize import render

ROOT = Path(__file__).parents[2]
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not networks_can_be_made(), reason="root, and network namespaces"
)


def run(scene: str, folder: Path) -> dict[str, Any]:
    """What ``support.cluster_of_pods`` tells."""
    done = subprocess.run(
        [sys.executable, "-m", "support.cluster_of_pods", scene, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        timeout=800.0,
        check=False,
    )
    logs = "".join(
        f"\n--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
        for path in folder.iterdir()
        if path.is_file()
    )
    assert done.returncode == 0, done.stderr[-3000:] + logs
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@needs_namespaces
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_pods_serve_tokens_without_privileges(tmp_path: Path) -> None:
    told = run("pods", tmp_path)
    assert "Paris" in told.pop("answer")
    assert told == {
        "reached the head": [True, True],
        "ready before": [True, False, True],
        "deployed with another token": 403,
        "deployed": 200,
        "ready": [True, True, True],
        "alive": [True, True, True],
        "routers": [0, 1, 0],
        "workers": [0, 0, 1],
        "user": ["10001"] * 4,
        "capabilities": 0,
        "may gain privileges": False,
        "may write": ["/cache/x"],
        "grpc listens": True,
    }


@needs_namespaces
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_image_serves_and_calls_itself_healthy(tmp_path: Path) -> None:
    assert run("image", tmp_path) == {"healthy": True}


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server")
@pytest.mark.integration
def test_redis_answers_its_probe_and_nobody_without_the_password(tmp_path: Path) -> None:
    stack = Stack("production", render(ROOT / MANIFESTS / "overlays" / "production"))
    (owner,) = stack.of_kind("StatefulSet")
    (container,) = owner["spec"]["template"]["spec"]["containers"]
    password, socket = "0123456789abcdef", str(tmp_path / "s")
    words = [*container["command"], *container["args"]]
    given = {"$(REDISCLI_AUTH)": password, "/data": str(tmp_path)}
    here = ["--unixsocket", socket, "--port", "0"]  # no port of this machine
    server = subprocess.Popen([*(given.get(word, word) for word in words), *here])
    probe = container["readinessProbe"]["exec"]["command"]
    try:
        wait_until(Path(socket).exists, 30.0, "Redis listens")
        for environment, answer in (({"REDISCLI_AUTH": password}, "PONG"), ({}, "NOAUTH")):
            done = subprocess.run(
                [probe[0], "-s", socket, "--raw", *probe[1:]],
                env={"PATH": os.environ["PATH"], **environment},
                capture_output=True,
                text=True,
                timeout=30.0,
                check=False,
            )
            assert answer in done.stdout
    finally:
        server.terminate()
        server.wait(30.0)


@pytest.mark.integration
def test_rays_autoscaler_reads_the_bounds_of_each_group() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )

    stack = Stack("production", render(ROOT / MANIFESTS / "overlays" / "production"))
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "c", "namespace": "chairlift"}, "spec": stack.cluster}
    )
    kinds = config["available_node_types"]
    bounds = {name: (kind["min_workers"], kind["max_workers"]) for name, kind in kinds.items()}
    assert bounds == {"headgroup": (0, 0), "routers": (3, 3), "workers": (2, 8)}
    assert kinds["headgroup"]["resources"]["CPU"] == 0
    assert kinds["routers"]["resources"]["chairlift_router"] == 1
    assert kinds["workers"]["resources"]["GPU"] == 1
