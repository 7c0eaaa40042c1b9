"""``chairlift explain REQUEST_ID --file FILE``: one request's story, from a ledger."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chairlift.workers.explain import explain
from chairlift.workers.ledger_file import open_ledger

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", metavar="REQUEST_ID", help="the answer's X-Request-Id header")
    parser.add_argument("--file", type=Path, required=True, help="a .ledger file")


def run(arguments: argparse.Namespace) -> int:
    """Print the story; 1 when the file does not know the request."""
    lines = explain(open_ledger(arguments.file), arguments.request_id)
    if not lines:
        print(f"{arguments.file} does not know {arguments.request_id}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0
