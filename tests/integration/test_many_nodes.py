"""A node dies with a worker on it, on a Ray cluster of three: nobody notices."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TESTS = Path(__file__).parents[1]


def test_a_node_that_dies_changes_no_answer() -> None:
    command = [sys.executable, "-m", "support.node_death"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=TESTS)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("{")))
    assert found["moved"] > 0
    assert (found["lost"], found["tokens"], found["texts"]) == (0, 0, 0)
