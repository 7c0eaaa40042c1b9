"""Fits the table of ``quantiles:NAME`` to a trace: ``python -m chairlift.evaluation.fit TRACE``.

Owns what is kept of a trace: quantiles of the prompt's length and, for each eighth of the requests
by prompt length, quantiles of the output's, closer together towards the long tail. Prints the JSON
that goes to ``evaluation/lengths_NAME.json``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from chairlift.evaluation.lengths import FittedTable, interpolate
from chairlift.evaluation.traces import Arrival, read_trace

__all__ = ["fit", "main"]

_ROWS = 8
_TAIL = (0.98, 0.99, 0.995, 0.998, 1.0)
_PROMPT_LEVELS = (*(i / 32 for i in range(32)), *_TAIL)
_OUTPUT_LEVELS = (0.0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.9, 0.95, *_TAIL)


def fit(arrivals: Sequence[Arrival]) -> FittedTable:
    """The table of a trace of at least 8 requests."""
    ordered = sorted((arrival.lengths for arrival in arrivals), key=lambda each: each.prompt)
    if len(ordered) < _ROWS:
        raise ValueError(f"a trace of {len(ordered)} requests is too short to fit")
    prompts = [each.prompt for each in ordered]
    rows = []
    for i in range(_ROWS):
        share = ordered[i * len(ordered) // _ROWS : (i + 1) * len(ordered) // _ROWS]
        outputs = sorted(each.output for each in share)
        rows.append(tuple(_quantile(outputs, level) for level in _OUTPUT_LEVELS))
    return FittedTable(
        prompt_levels=_PROMPT_LEVELS,
        prompt=tuple(_quantile(prompts, level) for level in _PROMPT_LEVELS),
        output_levels=_OUTPUT_LEVELS,
        output=tuple(rows),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chairlift.evaluation.fit", description=__doc__)
    parser.add_argument("trace", type=Path, help="a file that chairlift bench --trace reads")
    parser.add_argument("--source", default="", help="where the trace is from, whom to cite")
    parser.add_argument("--licence", default="", help="the trace's licence")
    arguments = parser.parse_args(argv)
    try:
        arrivals = read_trace(arguments.trace)
        table = fit(arrivals)
    except ValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        return 1
    print(_render(arguments, arrivals, table))
    return 0


def _quantile(ordered: Sequence[int], level: float) -> float:
    last = max(len(ordered) - 1, 1)
    levels = [i / last for i in range(len(ordered))]
    return round(interpolate(levels, ordered, level), 1)


def _render(arguments: argparse.Namespace, arrivals: Sequence[Arrival], table: FittedTable) -> str:
    """JSON with one line for each list of numbers."""
    command = ["python", "-m", "chairlift.evaluation.fit", arguments.trace.name]
    for flag in ("source", "licence"):
        command += [f"--{flag}", getattr(arguments, flag)] if getattr(arguments, flag) else []
    lengths = [arrival.lengths for arrival in arrivals]
    fields: dict[str, object] = {
        "source": arguments.source,
        "licence": arguments.licence,
        "made_by": shlex.join(command),
        "requests": len(arrivals),
        "mean_prompt": round(fmean(each.prompt for each in lengths), 1),
        "mean_output": round(fmean(each.output for each in lengths), 1),
        "prompt_levels": table.prompt_levels,
        "prompt": table.prompt,
        "output_levels": table.output_levels,
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in fields.items()]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in table.output)
    return "\n".join(["{", *lines, '  "output": [', rows, "  ]", "}"])


if __name__ == "__main__":
    sys.exit(main())
