"""Checks that the committed stubs are what ``make proto`` writes from each ``.proto`` file.

PYTHONPATH=tests python -m checks.proto_stubs [ROOT]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.source import Violation

__all__ = ["check_stubs", "main"]


def check_stubs(root: Path) -> Iterator[Violation]:
    """Compares byte by byte; the generator's version is part of the stubs, so it counts too."""
    protos = sorted(
        path.relative_to(root).as_posix() for path in (root / "chairlift").glob("*/proto/*.proto")
    )
    if not protos:
        yield Violation("chairlift", 1, "found no */proto/*.proto")
        return
    with tempfile.TemporaryDirectory() as folder:
        _generate(root, protos, folder)
        for written in sorted(Path(folder).rglob("*_pb2*")):
            stub = written.relative_to(folder)
            committed = root / stub
            if not committed.is_file():
                yield Violation(stub.as_posix(), 1, "is missing; run make proto")
            elif committed.read_bytes() != written.read_bytes():
                yield Violation(stub.as_posix(), 1, "differs from its .proto; run make proto")


def _generate(root: Path, protos: Sequence[str], folder: str) -> None:
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *protos]
    subprocess.run(command, cwd=root, check=True)


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[2]
    violations = list(check_stubs(root))
    for violation in violations:
        print(violation)
    print(f"generated stubs: {len(violations)} differences")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
