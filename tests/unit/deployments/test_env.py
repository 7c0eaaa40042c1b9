"""What is printed for the environment of a cluster's nodes."""

import argparse
import subprocess

import pytest

from chairlift.cluster.ray_flags import CLUSTER_FLAGS, FLAGS
from chairlift.deployments import env


def test_the_shell_takes_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert env.run(argparse.Namespace()) == 0
    script = f"export $(echo '{capsys.readouterr().out}') && env"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    for name, value in CLUSTER_FLAGS.items():
        assert f"{name}={value}" in shown.splitlines()


def test_nodes_have_all_flags_that_one_machine_has() -> None:
    assert FLAGS.items() <= CLUSTER_FLAGS.items()
