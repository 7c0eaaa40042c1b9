"""``chairlift replay FILE``: decide everything in a ledger again, and compare.

Owns the flags, the words and the exit code: 1 for a decision that came out otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chairlift.cluster.errors import LedgerError
from chairlift.workers.ledger_file import open_ledger
from chairlift.workers.replay import replay

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a .ledger file")


def run(arguments: argparse.Namespace) -> int:
    """Replay the file. Raises LedgerError when it cannot be read or replayed."""
    ledger = open_ledger(arguments.file)
    try:
        replayed = replay(ledger.header, ledger)
    except LedgerError as error:
        raise LedgerError(f"{arguments.file}: {error}") from None
    if replayed.difference is not None:
        print(replayed.difference)
        return 1
    print(
        f"no difference: {replayed.decisions} decisions in {replayed.steps} steps, "
        f"the whole state at {replayed.snapshots} snapshots; {replayed.skipped} records skipped"
    )
    return 0
