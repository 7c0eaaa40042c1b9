"""What recording costs: ``python -m chairlift.evaluation.ledger_overhead``.

Owns the comparison: the same engine with and without a ledger, in the order off, on, on, off, so
that a machine that grows slower in between is unfair to neither. Once with a runner that computes
nothing, where a step is all scheduling and the cost stands out in microseconds; once with the real
model, where its share of a step can be seen, as far as the machine is quiet enough.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import Controls, ReplicaInfo, Request, SamplingParams, Submission
from chairlift.evaluation.flags import count
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.intake import Intake
from chairlift.workers.ledger import Ledger
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner, StepPlan, StepResult
from chairlift.workers.snapshot import describe

__all__ = ["main"]

_ROUND = (False, True, True, False)
_BLOCK_SIZE = 16
_PROMPT = 32
_RING_BYTES = 16 * 1024**2
_GOAL = 0.02


class _IdleRunner:
    """Samples the token 1 without looking."""

    def advance(self, plan: StepPlan) -> StepResult:
        return StepResult([1] * sum(piece.samples for piece in plan.slices))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when recording takes less than 2% of a step of the model, else 1."""
    arguments = _parser().parse_args(argv)
    try:
        idle = _rounds(_IdleRunner(), arguments.slots, arguments.idle_steps, arguments.rounds)
        runner = _load_runner(arguments)
    except StartupError as error:
        print(f"ledger_overhead: {error}", file=sys.stderr)
        return 2
    model = _rounds(runner, arguments.slots, arguments.steps, arguments.rounds)
    fields = _report(idle, model)
    print(json.dumps(fields, indent=2) if arguments.json else _sentences(fields, arguments.slots))
    return 0 if fields["share_of_step"] < _GOAL else 1


def _report(idle: list[tuple[float, float]], model: list[tuple[float, float]]) -> dict[str, float]:
    """Seconds per step (off, on) of each round → figures over the rounds."""
    cost = statistics.median(on - off for off, on in idle)
    step = statistics.median(off for off, _ in model)
    ratios = [on / off for off, on in model]
    return {
        "idle_step_us": 1e6 * statistics.median(off for off, _ in idle),
        "recording_us": 1e6 * cost,
        "model_step_ms": 1e3 * step,
        "share_of_step": cost / step,
        "on_to_off": statistics.median(ratios),
        "on_to_off_lowest": min(ratios),
        "on_to_off_highest": max(ratios),
    }


def _sentences(fields: dict[str, float], slots: int) -> str:
    return (
        f"{slots} sequences that decode\n"
        f"  scheduling alone  {fields['idle_step_us']:.0f} µs a step; recording adds "
        f"{fields['recording_us']:.0f} µs\n"
        f"  with the model    {fields['model_step_ms']:.2f} ms a step; those microseconds are "
        f"{100 * fields['share_of_step']:.2f} % of it\n"
        f"  on to off         {fields['on_to_off']:.4f}, in single rounds "
        f"{fields['on_to_off_lowest']:.4f} to {fields['on_to_off_highest']:.4f}"
    )


def _rounds(runner: Runner, slots: int, steps: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds per step without and with a ledger, round by round."""
    _median_step(runner, slots, steps, is_recorded=True)  # the first run warms up
    results = []
    for _ in range(rounds):
        times: dict[bool, list[float]] = {False: [], True: []}
        for is_recorded in _ROUND:
            times[is_recorded].append(_median_step(runner, slots, steps, is_recorded=is_recorded))
        results.append((statistics.mean(times[False]), statistics.mean(times[True])))
    return results


def _median_step(runner: Runner, slots: int, steps: int, *, is_recorded: bool) -> float:
    """The median step of a new engine in which every seat decodes."""
    num_blocks = slots * -(-(_PROMPT + steps + 8) // _BLOCK_SIZE)
    info = ReplicaInfo(
        replica_id="overhead",
        model="overhead",
        vocab_size=2**16,
        max_sequence_tokens=num_blocks * _BLOCK_SIZE,
        max_sequences=slots,
        max_waiting=0,
        block_size=_BLOCK_SIZE,
        blocks_total=num_blocks,
    )
    controls = Controls(token_budget=slots * _PROMPT, max_sequences=slots)
    scheduler = Scheduler(BlockPool(num_blocks, _BLOCK_SIZE), controls, ())
    ledger = None
    if is_recorded:
        about = describe(scheduler, info.model, info.replica_id)
        ledger = Ledger(scheduler, about, ring_bytes=_RING_BYTES)
    intake = Intake(info)
    engine = Engine(scheduler, runner, intake, lambda _output: None, ledger=ledger)
    for slot in range(slots):
        sampling = SamplingParams(max_tokens=steps + 8, seed=slot, ignore_eos=True)
        prompt = tuple(range(slot * _PROMPT + 1, (slot + 1) * _PROMPT + 1))
        intake.submit(1, Submission(slot, Request(f"request-{slot}", prompt, sampling)))
    for _ in range(4):  # admission, prompts, and two more
        engine.step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _load_runner(arguments: argparse.Namespace) -> Runner:
    """The model, warmed up. Torch is imported here, so that flags are checked without waiting."""
    import torch

    from chairlift.workers.model_loading import Compute, make_runner

    torch.set_num_threads(arguments.threads)
    spec = read_spec(resolve_model(arguments.model))
    num_blocks = arguments.slots * -(-(_PROMPT + arguments.steps + 8) // _BLOCK_SIZE)
    compute = Compute(threads=arguments.threads)
    runner = make_runner(spec, compute, num_blocks=num_blocks, block_size=_BLOCK_SIZE)
    runner.warm_up(lambda _fraction: None)
    return runner


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.ledger_overhead",
        description="One engine with and without a ledger: what recording a step costs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--slots", type=count, default=16, help="sequences that decode together")
    parser.add_argument("--steps", type=count, default=60, help="of one run with the model")
    parser.add_argument("--idle-steps", type=count, default=3000, help="of one run without")
    parser.add_argument("--rounds", type=count, default=3, help="of off, on, on, off")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of the CPU")
    parser.add_argument("--json", action="store_true", help="print figures only, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
