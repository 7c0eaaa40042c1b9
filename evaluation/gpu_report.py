"""Is it right on this machine's GPU, and how fast: ``python -m chairlift.evaluation.gpu_report``.

Owns the flags, and what is printed and written. Nothing is fetched: weights are random and are
drawn where they are computed with. ``--device cpu --small`` runs every section on any machine, to
try the report itself; its figures say nothing of a GPU. With ``TRITON_INTERPRET=1`` and Triton
installed, it does so with the kernels for GPUs, otherwise with those for CPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from chairlift.evaluation.flags import positive
from chairlift.evaluation.gpu_clock import Deadline
from chairlift.evaluation.gpu_findings import GpuReport
from chairlift.evaluation.gpu_machine import facts
from chairlift.evaluation.gpu_models import interprets
from chairlift.evaluation.gpu_sections import FULL, SMALL, Run

__all__ = ["main"]

_WIDTH = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when something is wrong, 2 when there is nothing to measure on."""
    arguments = _parser().parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_report: torch sees no GPU; try the report itself with --device cpu --small",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    on_triton = arguments.device == "cuda" or interprets()
    run = Run(
        device=device,
        scale=SMALL if arguments.small else FULL,
        deadline=Deadline.after(arguments.budget_s),
        budget_s=arguments.budget_s,
        on_triton=on_triton,
        say=Console(stderr=True, highlight=False, soft_wrap=True).print,
    )
    about = {
        **facts(run.device),
        "kernels": "Triton" if on_triton else "for CPUs",
        "small": arguments.small,
        "budget, s": arguments.budget_s,
    }
    report = GpuReport(about, full=not arguments.small)
    report.sections.extend(run.sections())
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    report.show(console.print, console.print)
    if arguments.json:
        text = json.dumps(report.json(), indent=1)
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 0 if report.sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.gpu_report",
        description="Checks what is computed on a GPU, and measures it beside the GPU's limits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--small", action="store_true", help="tiny models, to try the report itself"
    )
    parser.add_argument(
        "--budget-s", type=positive, default=360.0, help="what would start later is left out"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
