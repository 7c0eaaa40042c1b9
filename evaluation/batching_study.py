"""The study of batching modes: ``python -m chairlift.evaluation.batching_study``.

Owns the flags, the loading of the model and the order of things; what is compared, and how, is
``batching_comparison``'s. It runs the real model in this process: engine, scheduler and runner as
they serve requests, without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chairlift.cluster.errors import ConfigError, StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Batching
from chairlift.evaluation.batching_comparison import StudyPlan, draw_work, run_round
from chairlift.evaluation.batching_report import print_report, report
from chairlift.evaluation.engine_run import EngineSizes, Work
from chairlift.evaluation.flags import count, positive
from chairlift.workers.sequence import Runner

__all__ = ["main"]

_BLOCK_SIZE = 16
# Scaled so that a small machine is done in minutes. Prompts are scaled further: they have 74 times
# the tokens of the outputs, and no mode can avoid computing them.
_PROMPT_LENGTHS = "quantiles:azure_code,scale=0.0078125"
_OUTPUT_LENGTHS = "quantiles:azure_code,scale=0.5,max=128"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study and report it.

    Returns:
        0 when the comparison is sound, whatever its outcome; 1 when it is not; 2 for a wrong flag
        or a model that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    plan = StudyPlan(
        prompt_lengths=arguments.prompt_lengths,
        output_lengths=arguments.output_lengths,
        seats=arguments.slots,
        requests=arguments.requests,
        rounds=arguments.pairs,
        rate=arguments.rate,
        seed=arguments.seed,
    )
    try:
        fields = _study(arguments, plan)
        print_report(fields, to_stderr=arguments.json == "-")
        _write_json(arguments.json, fields)
    except StartupError as error:
        print(f"batching_study: {error}", file=sys.stderr)
        return 2
    return 0 if fields["sound"] else 1


def _study(arguments: argparse.Namespace, plan: StudyPlan) -> dict[str, Any]:
    """Load the model, run every round; returns the report."""
    spec = read_spec(resolve_model(arguments.model))
    try:
        work = draw_work(plan, spec.vocab_size)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    sizes = _sizes(plan, work, spec, arguments.token_budget)
    runner = _load_runner(spec, sizes, arguments.threads)
    rounds = []
    with _progress() as progress:
        task = progress.add_task("runs", total=plan.rounds * len(Batching))
        for i in range(plan.rounds):
            rounds.append(
                run_round(i, work[i], runner, sizes, on_run=lambda _run: progress.advance(task))
            )
    about = {"model": spec.name, "threads": arguments.threads, "sizes": asdict(sizes)}
    return about | report(plan, rounds)


def _sizes(
    plan: StudyPlan, work: Sequence[Sequence[Work]], spec: ModelSpec, token_budget: int
) -> EngineSizes:
    longest = max(len(one.prompt) + one.output for each in work for one in each)
    if longest > spec.context_length:
        raise ConfigError(
            f"a request of {longest} tokens is longer than the model's {spec.context_length}"
        )
    return EngineSizes(
        seats=plan.seats,
        token_budget=token_budget,
        # Room for every seat at the greatest length, so that memory never binds.
        num_blocks=plan.seats * -(-longest // _BLOCK_SIZE),
        block_size=_BLOCK_SIZE,
        vocab_size=spec.vocab_size,
    )


def _load_runner(spec: ModelSpec, sizes: EngineSizes, threads: int) -> Runner:
    """The model, warmed up. Torch is imported here, so that flags are checked without waiting."""
    import torch

    from chairlift.workers.model_loading import Compute, make_runner

    torch.set_num_threads(threads)
    runner = make_runner(
        spec,
        Compute(threads=threads),
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
    )
    runner.warm_up(lambda _fraction: None)
    return runner


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _write_json(file: str | None, fields: dict[str, Any]) -> None:
    text = json.dumps(fields, indent=2)
    if file == "-":
        print(text)
    elif file is not None:
        try:
            Path(file).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json: cannot write {file}: {error.strerror}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.batching_study",
        description="Continuous against static batching: one engine, equal seats, equal work.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--slots", type=count, default=16, help="sequences that run together")
    parser.add_argument("--requests", type=count, default=192, help="of one round")
    parser.add_argument("--pairs", type=count, default=3, help="rounds; each runs every mode once")
    parser.add_argument("--rate", type=positive, help="arrivals a second; else all at the start")
    parser.add_argument("--prompt-lengths", default=_PROMPT_LENGTHS, help="as in chairlift bench")
    parser.add_argument("--output-lengths", default=_OUTPUT_LENGTHS, help="as in chairlift bench")
    parser.add_argument("--token-budget", type=count, default=512, help="tokens of one step")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of the CPU")
    parser.add_argument("--seed", type=int, default=0, help="of the work")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - is stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
