"""Capacity planning beside reality: ``python -m chairlift.evaluation.plan_check``.

Owns what is compared. The ceilings of this machine are measured, as ``chairlift plan --gpu cpu``
does it; from these the formulas of ``cluster.capacity`` predict steps, prompts and a full load,
which a bare engine with the model then runs. A ratio is measured over predicted; within says
whether the measured figure lies between the worst case and the best one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from chairlift.cluster.capacity import Step, step_s
from chairlift.cluster.capacity_devices import Cases, Device, efficiencies
from chairlift.cluster.capacity_model import ModelFigures, figures_of
from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import Batching
from chairlift.evaluation.engine_run import EngineSizes, Work, run_engine
from chairlift.evaluation.flags import count
from chairlift.evaluation.machine_ceilings import this_machine
from chairlift.evaluation.sweep import fill, measure
from chairlift.evaluation.sweep_points import Place
from chairlift.workers.kernel_choice import MathChoice
from chairlift.workers.model_loading import AnyRunner, Compute, make_runner
from chairlift.workers.weight_sizes import packed_size

__all__ = ["Compared", "Predictor", "main", "predict"]

_KINDS = ("int8", "float32")
_TOKEN_BUDGET, _BLOCK_SIZE, _BLOCKS = 512, 16, 2048
_PLACES = (
    *(Place("streams", streams, 128) for streams in (1, 8, 16, 32)),
    *(Place("context", streams, 2000) for streams in (1, 8)),
    *(Place("prompt", 1, tokens) for tokens in (64, 256, 1000)),
)
_LOAD_PROMPT, _LOAD_OUTPUT, _TURNS = 96, 64, 4


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure: predicted in the worst case, expected, in the best one, and measured."""

    what: str
    low: float
    expected: float
    high: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.measured / self.expected

    @property
    def within(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Predictor:
    """The formulas with one model and machine."""

    model: ModelFigures
    device: Device
    cases: Cases

    def seconds(self, step: Step, times: float = 1.0) -> tuple[float, float, float]:
        """Of a step that comes so many times: the best case, expected, the worst one."""
        cases = (self.cases.best, self.cases.expected, self.cases.worst)
        best, expected, worst = (
            times * step_s(self.model, self.device, 1, case, step) for case in cases
        )
        return best, expected, worst


def predict(predictor: Predictor, place: Place) -> tuple[float, float, float]:
    """Seconds of a step, or until the first token, at a place of the sweep."""
    if place.decodes:
        return predictor.seconds(Step(place.streams, place.tokens))
    steps = math.ceil(place.tokens / _TOKEN_BUDGET)
    chunk = Step(0, 0, place.tokens / steps, place.tokens)
    return predictor.seconds(chunk, steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 2 when there is nothing to measure."""
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        found = {kind: list(_compare(arguments, kind)) for kind in arguments.math}
    except (StartupError, RuntimeError) as error:
        print(f"plan_check: {error}", file=sys.stderr)
        return 2
    for kind, compared in found.items():
        Console().print(_table(kind, compared))
    if arguments.json:
        rows = {
            kind: [asdict(each) | {"ratio": each.ratio, "within": each.within} for each in compared]
            for kind, compared in found.items()
        }
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _compare(arguments: argparse.Namespace, kind: MathChoice) -> Iterator[Compared]:
    say: Callable[[str], None] = Console(stderr=True, highlight=False).print
    spec = read_spec(resolve_model(arguments.model))
    weights = packed_size(EngineConfig(cpu_math=kind), spec)
    say(f"{kind}: ceilings of the machine, and the model")
    before = this_machine()
    compute = Compute(math=kind, threads=arguments.threads)
    runner = make_runner(spec, compute, num_blocks=_BLOCKS, block_size=_BLOCK_SIZE)
    runner.warm_up(lambda _share: None)
    fill(runner, _BLOCKS, spec.vocab_size)
    places = [each for each in _PLACES if each.prompt + each.output <= spec.context_length]
    say(f"{kind}: {len(places)} points, {arguments.rounds} times")
    seconds = measure(runner, places, spec.vocab_size, arguments.rounds)
    say(f"{kind}: loads that keep {', '.join(map(str, arguments.seats))} seats full")
    rates = [_full_load(runner, seats, spec.vocab_size) for seats in arguments.seats]
    # Other work can only lower a ceiling, so the best of two counts.
    device = _best(before, this_machine())
    model = figures_of(spec, weights.math, weights.size, weights.cache_number)
    predictor = Predictor(model, device, efficiencies(device))
    for place, measured in zip(places, seconds, strict=True):
        low, expected, high = predict(predictor, place)
        milliseconds = (1e3 * each for each in (low, expected, high, measured))
        yield Compared(_named(place), *milliseconds)
    for seats, rate in zip(arguments.seats, rates, strict=True):
        prompts = seats * _LOAD_PROMPT / _LOAD_OUTPUT
        step = Step(seats, _LOAD_PROMPT + _LOAD_OUTPUT / 2, prompts, _LOAD_PROMPT)
        best, expected, worst = predictor.seconds(step)
        bounds = (seats / worst, seats / expected, seats / best)
        yield Compared(f"full load of {seats} seats, tokens/s", *bounds, rate)


def _best(one: Device, other: Device) -> Device:
    """The higher of their ceilings."""
    flops = {dtype: max(rate, other.flops[dtype]) for dtype, rate in one.flops.items()}
    return replace(one, bandwidth=max(one.bandwidth, other.bandwidth), flops=flops)


def _full_load(runner: AnyRunner, seats: int, vocab_size: int) -> float:
    """Output tokens a second while every seat is taken again at once."""
    rng = random.Random("plan")
    work = [
        Work(0.0, tuple(rng.choices(range(vocab_size), k=_LOAD_PROMPT)), _LOAD_OUTPUT)
        for _ in range(_TURNS * seats)
    ]
    sizes = EngineSizes(
        seats=seats,
        token_budget=_TOKEN_BUDGET,
        num_blocks=_BLOCKS,
        block_size=_BLOCK_SIZE,
        vocab_size=vocab_size,
    )
    run = run_engine(work, Batching.CONTINUOUS, runner, sizes, in_flight=seats)
    return run.output_tokens_per_s


def _named(place: Place) -> str:
    if place.decodes:
        return f"{place.streams} decoding at {place.tokens}, ms"
    return f"prompt of {place.tokens}, ms"


def _table(kind: str, compared: Sequence[Compared]) -> Table:
    table = Table(title=f"predicted and measured, {kind}", title_justify="left")
    for name in ("", "low", "predicted", "high", "measured", "ratio", "within"):
        table.add_column(name, justify="right" if name else "left")
    for each in compared:
        numbers = (each.low, each.expected, each.high, each.measured)
        cells = [f"{number:.4g}" for number in numbers]
        within = "yes" if each.within else "no"
        table.add_row(each.what, *cells, f"{each.ratio:.2f}", within)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.plan_check",
        description="What chairlift plan predicts for this machine's processors, and what is true.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--math", nargs="+", choices=_KINDS, default=_KINDS, help="cpu_math")
    parser.add_argument("--seats", nargs="+", type=count, default=(8, 24), help="of full loads")
    parser.add_argument("--rounds", type=count, default=2, help="of each point; the best counts")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of kernels and engine")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
