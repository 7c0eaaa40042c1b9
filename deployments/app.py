"""The builder by which Ray Serve makes the application on a cluster that somebody else has started.

``import_path: chairlift.deployments.app:build`` is what ``serve deploy``, ``serve run`` and
KubeRay's RayService name; ``args`` are the configuration tree of ``chairlift serve --config``.

Owns what of a start has to be clear before Ray is asked for anything, and differs from a start on
one machine: workers listen on their node's address, and each process finds the cluster's token on
its node, so that it is neither in Serve's configuration nor in what Ray keeps. The model's files
are looked at where they are needed; they need not be where this runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chairlift.cluster.config import build_config, cluster_token
from chairlift.cluster.guard_policy import load_policy
from chairlift.deployments.data_plane import DataPlane

if TYPE_CHECKING:
    from ray import serve

__all__ = ["build"]


def build(args: Mapping[str, Any]) -> serve.Application:
    """The whole service, of a configuration tree, over which the environment goes.

    Raises:
        ConfigError: one line that names the setting at fault.
    """
    config = build_config(args)
    cluster_token(config.workers)
    policy = load_policy(config.guard.file)

    from chairlift.deployments.application import build_application

    return build_application(config, policy, DataPlane())
