"""``chairlift env``: what Ray's processes need in their environment, on every node of a cluster.

Owns the form: a line a variable, as the shell's ``export $(…)``, a unit's ``EnvironmentFile`` and
``docker run --env-file`` take it. Which they are is ``cluster.ray_flags``'.
"""

from __future__ import annotations

import argparse

from chairlift.cluster.ray_flags import CLUSTER_FLAGS

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:
    """Print them; returns 0."""
    for name, value in CLUSTER_FLAGS.items():
        print(f"{name}={value}")
    return 0
