"""Feeds every parser damaged inputs, and fails where one does more than refuse.

PYTHONPATH=tests python -m fuzz [--target NAME …] [--seconds N | --examples N] [--seed N]

PYTHONPATH=tests python -m fuzz --target NAME --input FILE      feeds one input again
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fuzz.child import Plan
from fuzz.runner import run, table
from fuzz.targets import TARGETS, find

__all__ = ["main"]

SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--target", action="append", choices=names, help="default: all")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help=f"for each target ({SECONDS:g})")
    length.add_argument("--examples", type=int, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"), help="failing inputs")
    parser.add_argument("--input", type=Path, help="feed this file to the target, unwatched")
    options = parser.parse_args(arguments)
    if options.input is not None:
        return _again(options.target or [], options.input.read_bytes())
    seconds = SECONDS if options.seconds is options.examples is None else options.seconds
    plan = Plan(seconds, options.examples, options.seed)
    results = []
    for name in options.target or names:
        results.append(run(name, plan, options.faults))
        for fault in results[-1].faults:
            print(f"{name}: {fault.kind}\n  {fault.input}\n{fault.trace}", file=sys.stderr)
    print("\n".join(table(results)))
    return 1 if any(result.faults for result in results) else 0


def _again(names: Sequence[str], data: bytes) -> int:
    for name in names:
        target = find(name)
        with tempfile.TemporaryDirectory() as scratch:
            target.inputs(Path(scratch))
            with target.open(Path(scratch)) as feed:
                try:
                    feed(data)
                    print("accepted")
                except target.refusals as error:
                    print(f"refused: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
