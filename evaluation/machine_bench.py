"""How fast Chairlift is on this machine: ``python -m chairlift.evaluation.machine_bench``.

Owns the flags and the order of things. Three layers do the same work: the kernels alone, an engine
in this process, and a whole service over HTTP with all defaults on, as ``chairlift serve`` starts
it. The loads are a, b and c of ``loads``. Engine and service take turns, load by load, so that both
see the same machine; the one whose turn it is not sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Batching
from chairlift.evaluation.completions import Target
from chairlift.evaluation.drill_client import in_loop, load_session
from chairlift.evaluation.drill_service import running_service
from chairlift.evaluation.engine_run import EngineSizes, run_engine
from chairlift.evaluation.flags import count
from chairlift.evaluation.kernels import measure, ours
from chairlift.evaluation.load_run import run_load
from chairlift.evaluation.loads import Load, closed_load, warm_up_load
from chairlift.evaluation.machine_ceilings import measure_ceilings
from chairlift.evaluation.machine_report import EngineFigures, MachineReport, Turn
from chairlift.evaluation.openai_stream import first_model
from chairlift.evaluation.peers_report import Figures, figures_of
from chairlift.evaluation.step_times import StepTimes
from chairlift.workers.kernel_choice import MathChoice
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.sequence import Runner, StepPlan, StepResult

__all__ = ["main"]

_KINDS = ("int8", "float32")
_LOADS = ("a", "b", "c")
_ROWS = (1, 16, 32)
_SEATS, _TOKEN_BUDGET, _BLOCK_SIZE = 32, 512, 16  # a service's defaults
_BLOCKS = 2048
_CONTEXT = 128
_REHEARSALS = 30
_TIMEOUT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a request failed, 2 when there is nothing to measure."""
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    try:
        report = _measure(arguments, say)
    except (StartupError, RuntimeError, TimeoutError) as error:
        print(f"machine_bench: {error}", file=sys.stderr)
        return 2
    for table in report.tables():
        Console().print(table)
    if arguments.json:
        text = json.dumps(asdict(report), indent=1)
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 1 if any(turn.service.failures for turn in report.turns) else 0


def _measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> MachineReport:
    spec = read_spec(resolve_model(arguments.model))
    say("memory and matrix products, then linear layers alone")
    ceilings = measure_ceilings()
    with torch.inference_mode():
        layers = {kind: ours(spec, kind, arguments.threads) for kind in arguments.math}
        kernels = measure(layers, _ROWS, rounds=5)
    layers.clear()  # and with them another copy of the weights
    turns: list[Turn] = []
    for kind in arguments.math:
        say(f"{kind}: an engine, and a service beside it")
        engine = _Engine(spec, kind, arguments.threads)
        with running_service("--model", arguments.model, "--cpu-math", kind) as service:
            base = f"{service.url}/v1"
            _over_http(base, warm_up_load("0"))
            for load in _loads(arguments.rounds):
                say(f"{kind}: load {load.name}")
                turns.append(_turn(len(turns), kind, engine, base, load))
    about = {"model": spec.name, "threads": arguments.threads, "rounds": arguments.rounds}
    return MachineReport(about, ceilings, tuple(kernels), tuple(turns))


def _loads(rounds: int) -> Iterator[Load]:
    for name in _LOADS:
        for number in range(rounds):
            yield closed_load(name, f"{number}")


def _turn(number: int, kind: MathChoice, engine: _Engine, base: str, load: Load) -> Turn:
    """Both once; who is first changes from turn to turn."""
    if number % 2:
        service = _over_http(base, load)
        return Turn(kind, load.name, engine.run(load), service)
    return Turn(kind, load.name, engine.run(load), _over_http(base, load))


class _Engine:
    """An engine with the model, in this process."""

    def __init__(self, spec: ModelSpec, kind: MathChoice, threads: int) -> None:
        compute = Compute(math=kind, threads=threads)
        runner = make_runner(spec, compute, num_blocks=_BLOCKS, block_size=_BLOCK_SIZE)
        runner.warm_up(lambda _share: None)
        self._model = runner
        self._sizes = EngineSizes(
            seats=_SEATS,
            token_budget=_TOKEN_BUDGET,
            num_blocks=_BLOCKS,
            block_size=_BLOCK_SIZE,
            vocab_size=spec.vocab_size,
        )

    def run(self, load: Load) -> EngineFigures:
        timed = _TimedRunner(self._model)
        run = run_engine(
            load.work, Batching.CONTINUOUS, timed, self._sizes, in_flight=load.in_flight
        )
        seats = load.in_flight or _SEATS
        step = timed.times.decode_s(seats)
        return EngineFigures(
            kernel_tokens_per_s=seats / self._kernels_alone(seats),
            output_tokens_per_s=run.output_tokens_per_s,
            decode_tokens_per_s=None if step is None else seats / step,
            first_token_p50=median(run.first_token),
        )

    def _kernels_alone(self, sequences: int) -> float:
        """Seconds that the kernels of a step take: the median of some, one after the other."""
        step = self._model.rehearse(sequences, _CONTEXT)
        begins = []
        for _ in range(_REHEARSALS):
            begins.append(time.perf_counter())
            step()
        return median(later - earlier for earlier, later in pairwise(begins))


class _TimedRunner:
    """A runner that notes when each step began."""

    def __init__(self, runner: Runner) -> None:
        self.times = StepTimes()
        self._runner = runner

    def advance(self, plan: StepPlan) -> StepResult:
        self.times.begin(plan)
        return self._runner.advance(plan)


def _over_http(base: str, load: Load) -> Figures:
    async def play() -> Figures:
        async with load_session() as session:
            target = Target(base, await first_model(session, base))
            return figures_of(await run_load(session, target, load, _TIMEOUT_S))

    return in_loop(play())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.machine_bench",
        description="Kernels, a bare engine and a whole service on this machine, and their ratios.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--math", nargs="+", choices=_KINDS, default=_KINDS, help="cpu_math")
    parser.add_argument("--rounds", type=count, default=1, help="of each load")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of kernels and engine")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
