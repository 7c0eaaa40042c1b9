"""What the fuzzer finds, and what it says of it."""

from pathlib import Path

import pytest

from fuzz.child import Limits, Plan
from fuzz.runner import Result, run, table

LIMITS = Limits(cpu_s=0.3, memory=256 << 20)


def feed(name: str, folder: Path) -> Result:
    return run(name, Plan(None, 1, seed=0), folder, LIMITS, "support.planted")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hangs", "used more than 0.3 s of CPU"),
        ("grows", "MemoryError at planted.py"),
        ("dies", "died of SIGSEGV"),
        ("crashes", "KeyError at planted.py"),
    ],
)
def test_a_planted_fault_is_found_and_its_input_kept(name, kind, tmp_path):
    result = feed(name, tmp_path / "faults")
    (fault,) = result.faults
    assert fault.kind.startswith(kind)
    assert fault.input.read_bytes() == b"input"
    assert result.counts.tried == 1
    if name == "grows":
        assert result.counts.growth > 128 << 20


def test_a_refusal_is_counted_and_no_fault(tmp_path):
    result = feed("refuses", tmp_path / "faults")
    assert (result.counts.tried, result.counts.refused, result.faults) == (1, 1, [])
    assert not (tmp_path / "faults").exists()
    assert [line.split(" | ")[:4] for line in table([result])][2:] == [["| refuses", "1", "1", "0"]]
