"""What KubeRay (as of v1.7.0) makes of a group of pods: the command, and the environment.

By its rules: parameters in order of their names, a switch for each that is ``true``, amounts from
the container's limits where ``rayStartParams`` does not say.
"""

from __future__ import annotations

from collections.abc import Mapping

from checks.cluster_stack import Pods, Stack, quantity
from support.containers import Volume

__all__ = ["HEAD_PORT", "argv", "environment", "volumes", "wait_for_head"]

HEAD_PORT = 6379
NOT_SWITCHES = ("log-color", "include-dashboard")
SHELL = ("/bin/bash", "-c", "--")


def argv(pods: Pods, stack: Stack, head: str) -> list[str]:
    """Of the container that Ray runs in; ``head`` is the head's address."""
    given = _parameters(pods, head) | ({"no-monitor": "true"} if _scaled_head(pods, stack) else {})
    words = ["ray", "start", *(["--head"] if pods.is_head else [])]
    for name, value in sorted(given.items()):
        if value.lower() in ("true", "false") and name not in NOT_SWITCHES:
            words += [f"--{name}"] if value.lower() == "true" else []
        else:
            words.append(f"--{name}={value}")  # with the quotes that it may have
    return [*SHELL, f"ulimit -n 65536; {' '.join(words)}"]


def wait_for_head(head: str) -> list[str]:
    """What its init container goes by, before a pod that is not the head starts."""
    return [*SHELL, f"ray health-check --address {head}:{HEAD_PORT}"]


def environment(pods: Pods, image: Mapping[str, str], head: str, token: str) -> dict[str, str]:
    """The image's, the manifest's, and what KubeRay adds; ``token`` is of Ray."""
    address = "127.0.0.1" if pods.is_head else head
    return {
        **image,
        **{each["name"]: each["value"] for each in pods.main["env"]},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_PORT": str(HEAD_PORT),
        "RAY_ADDRESS": f"{address}:{HEAD_PORT}",
        "RAY_CLUSTER_NAME": "chairlift",
        "RAY_timeout_ms_task_wait_for_death_info": "0",
        "RAY_gcs_server_request_timeout_seconds": "5",
        "RAY_SERVE_KV_TIMEOUT_S": "5",
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
    }


def volumes(pods: Pods, secrets: Mapping[str, Mapping[str, str]]) -> list[Volume]:
    """Those that the container mounts; ``secrets``: the files of each Secret."""
    known = {each["name"]: each for each in pods.spec["volumes"]}
    made = []
    for mount in pods.main["volumeMounts"]:
        volume = known[mount["name"]]
        if "secret" in volume:
            files = secrets[volume["secret"]["secretName"]]
            made.append(Volume(mount["mountPath"], files=files))
        else:
            size = str(int(quantity(volume["emptyDir"]["sizeLimit"])))
            made.append(Volume(mount["mountPath"], size))
    return made


def _parameters(pods: Pods, head: str) -> dict[str, str]:
    gpus = int(pods.limit("nvidia.com/gpu"))
    return {
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        "num-cpus": str(-(-int(1000 * pods.limit("cpu")) // 1000)),
        "memory": str(int(pods.limit("memory"))),
        **({"num-gpus": str(gpus)} if gpus else {}),
        **({"dashboard-host": "0.0.0.0"} if pods.is_head else {"address": f"{head}:{HEAD_PORT}"}),
        **(pods.ray or {}),
        "block": "true",
    }


def _scaled_head(pods: Pods, stack: Stack) -> bool:
    return pods.is_head and stack.scales
