"""What exactness on a GPU rests on, as far as a compiler shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[3]


def test_few_rows_and_many_meet_the_same_instructions(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    command = [sys.executable, "-m", "support.hopper"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kernel, variants in json.loads(done.stdout).items():
        assert variants == [["m64k16.f32.bf16.bf16"]] * len(variants), kernel
