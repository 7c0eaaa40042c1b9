"""What a step costs as work grows: ``python -m chairlift.evaluation.sweep``.

Owns the flags and how a point is measured. The engine is the one that serves requests, without
HTTP; ``sweep_points`` says which points there are.

A decoding point is the median time from one step to the next while all of its sequences decode: a
step that something else held up does not count, and the context grows to both sides of the one that
is meant. Their prompts are not computed, except for the last row: eight of 8,000 tokens would take
minutes, and what stands in the cache changes nothing about how long it takes to read. It must have
been written, though, by the model and once for each block, or pages that do not exist yet would be
read; that comes before anything is measured. A prompt's point is the time to its first token, all
of it computed, with a service's token budget.

The points are measured in turn, round by round, and the best round counts: other work on the
machine can only slow one down.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console

from chairlift.cluster.errors import StartupError
from chairlift.cluster.machine import read_cpu
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import Batching, SamplingParams
from chairlift.evaluation.engine_run import EngineSizes, Work, run_engine
from chairlift.evaluation.flags import count
from chairlift.evaluation.step_times import StepTimes
from chairlift.evaluation.sweep_points import Place, Point, SweepReport, places_within
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.sequence import Runner, SequenceKey, Slice, StepPlan, StepResult
from chairlift.workers.sequence import Sequence as Decoded

__all__ = ["fill", "main", "measure"]

_KINDS = ("int8", "float32")
_TOKEN_BUDGET, _BLOCK_SIZE = 512, 16  # a service's defaults


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and draw; 2 when something is missing for it."""
    arguments = _parser().parse_args(argv)
    if arguments.plots and find_spec("matplotlib") is None:
        print("sweep: --plots needs matplotlib, which the extra `plots` brings", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    try:
        report = _report(arguments, Console(stderr=True, highlight=False).print)
    except (StartupError, RuntimeError) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    for table in report.tables():
        Console().print(table)
    if arguments.json:
        text = json.dumps(report.as_json(), indent=1)
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    if arguments.plots:
        from chairlift.evaluation.sweep_plots import write_plots

        write_plots(report, Path(arguments.plots))
    return 0


def _report(arguments: argparse.Namespace, say: Callable[[str], None]) -> SweepReport:
    spec = read_spec(resolve_model(arguments.model))
    places = places_within(spec.context_length)
    blocks = max(_blocks(place) for place in places)
    points: list[Point] = []
    for kind in arguments.math:
        say(f"{kind}: fills the cache")
        compute = Compute(math=kind, threads=arguments.threads)
        runner = make_runner(spec, compute, num_blocks=blocks, block_size=_BLOCK_SIZE)
        runner.warm_up(lambda _share: None)
        fill(runner, blocks, spec.vocab_size)
        say(f"{kind}: {len(places)} points, {arguments.rounds} times")
        found = measure(runner, places, spec.vocab_size, arguments.rounds)
        points += (Point(kind, *each) for each in zip(places, found, strict=True))
        del runner  # and with it the cache, before there is the next
    about = {
        "model": spec.name,
        "machine": read_cpu().model,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return SweepReport(about, tuple(points))


def measure(
    runner: Runner, places: Sequence[Place], vocab_size: int, rounds: int
) -> tuple[float, ...]:
    """Seconds of a step, or until the first token, at each place."""
    rng = random.Random("sweep")
    best = [math.inf] * len(places)
    for _ in range(rounds):
        for i, place in enumerate(places):
            best[i] = min(best[i], _seconds(runner, place, vocab_size, rng))
    return tuple(best)


def _seconds(runner: Runner, place: Place, vocab_size: int, rng: random.Random) -> float:
    work = [
        Work(0.0, tuple(rng.choices(range(vocab_size), k=place.prompt)), place.output)
        for _ in range(place.streams)
    ]
    sizes = EngineSizes(
        seats=place.streams,
        # Prompts that are not computed all fit into the first step.
        token_budget=place.streams * place.prompt if place.decodes else _TOKEN_BUDGET,
        num_blocks=_blocks(place),
        block_size=_BLOCK_SIZE,
        vocab_size=vocab_size,
    )
    if not place.decodes:
        return run_engine(work, Batching.CONTINUOUS, runner, sizes).first_token[0]
    decoding = _DecodingRunner(runner)
    run_engine(work, Batching.CONTINUOUS, decoding, sizes)
    seconds = decoding.times.decode_s(place.streams)
    if seconds is None:
        raise RuntimeError(f"{place.streams} streams never decoded together")
    return seconds


def _blocks(place: Place) -> int:
    return place.streams * -(-(place.prompt + place.output) // _BLOCK_SIZE)


class _DecodingRunner:
    """A runner that computes of each slice the row that is sampled from, and notes when it ran."""

    def __init__(self, runner: Runner) -> None:
        self.times = StepTimes()
        self._runner = runner

    def advance(self, plan: StepPlan) -> StepResult:
        self.times.begin(plan)
        sampled = (piece for piece in plan.slices if piece.samples)
        last = (Slice(each.sequence, each.start + each.count - 1, 1, True) for each in sampled)
        return self._runner.advance(StepPlan(tuple(last)))


def fill(runner: Runner, blocks: int, vocab_size: int) -> None:
    """Write each block once, as many in a step as the token budget has room for."""
    rng, at_once = random.Random("fill"), _TOKEN_BUDGET // _BLOCK_SIZE
    for first in range(0, blocks, at_once):
        slices = []
        for block in range(first, min(first + at_once, blocks)):
            sequence = _in_block(block, rng.choices(range(vocab_size), k=_BLOCK_SIZE))
            slices.append(Slice(sequence, start=0, count=_BLOCK_SIZE, samples=False))
        runner.advance(StepPlan(tuple(slices)))


def _in_block(block: int, tokens: list[int]) -> Decoded:
    return Decoded(
        key=SequenceKey(-1, block),
        request_id="fill",
        tenant="fill",
        choice=0,
        sampling=SamplingParams(max_tokens=1),
        arrival=block,
        tokens=tokens,
        num_prompt=len(tokens),
        blocks=[block],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.sweep",
        description="What decoding costs by streams and by context, and prompts by their length.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--math", nargs="+", choices=_KINDS, default=_KINDS, help="cpu_math")
    parser.add_argument("--rounds", type=count, default=3, help="of all points")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of kernels and engine")
    parser.add_argument("--json", metavar="FILE", help="write all points as JSON")
    parser.add_argument("--plots", metavar="FOLDER", help="draw SVG files; needs matplotlib")
    return parser


if __name__ == "__main__":
    sys.exit(main())
