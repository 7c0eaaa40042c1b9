"""The drills on clusters of several hosts: what users are told, whatever breaks between them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chairlift.evaluation.drill_network import networks_can_be_made

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not networks_can_be_made(), reason="this user may make no network namespaces"
    ),
]

NEEDS: Mapping[str, str] = {"head": "redis-server", "router": "haproxy", "upgrade": "haproxy"}


@pytest.mark.parametrize(
    "name", ["node", "head", "upgrade", "apart", "partition", "partition-hub", "router"]
)
def test_what_breaks_between_nodes_changes_no_answer(name: str, tmp_path: Path) -> None:
    program = NEEDS.get(name)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    report = drill(name, tmp_path / "report.json")
    answered = [claim for claim in report["claims"] if claim["wanted"].startswith("=")]
    assert [claim for claim in answered if not claim["holds"]] == []


def drill(name: str, file: Path) -> dict[str, Any]:
    """In a process of its own, which does not come back from its network; its report."""
    command = [sys.executable, "-m", "chairlift.evaluation.drills", name, "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert file.exists(), ended.stderr
    report: dict[str, Any] = json.loads(file.read_text())
    return report
