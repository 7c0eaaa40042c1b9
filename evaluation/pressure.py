"""What a far too small KV cache does: ``python -m chairlift.evaluation.pressure``.

One engine, three phases: a load that fits; then requests that outgrow the cache together, so that
all but the oldest (who never yields) are preempted; then the first load again. Reports tokens per
second of each phase, how many were preempted, and whether every request still got the tokens and
log probabilities that it gets alone, one for each token.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import Batching, Request, SamplingParams
from chairlift.evaluation.exactness_run import Answer, Player, Schedule
from chairlift.evaluation.flags import count
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.sequence import Runner, StepPlan, StepResult
from chairlift.workers.sequence import Sequence as Running

__all__ = ["Phase", "PressureReport", "main", "study"]

_BLOCK_SIZE = 4
_NUM_BLOCKS = 40
_AMPLE_BLOCKS = 400
_FITTING, _FITTING_OUTPUT = 4, 24
_PRESSING, _PRESSING_OUTPUT = 8, 64


@dataclass(frozen=True, slots=True)
class Phase:
    """One load, from its first step to its last token."""

    name: str
    requests: int
    preempted: int
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class PressureReport:
    """The phases in order, and what differed from each request alone."""

    phases: tuple[Phase, ...]
    differing: int
    missing_logprobs: int


class _Watched:
    """The runner, and which sequences it saw preempted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.seen: dict[Running, None] = {}

    def advance(self, plan: StepPlan) -> StepResult:
        self.seen |= dict.fromkeys(piece.sequence for piece in plan.slices)
        return self._runner.advance(plan)


def study(runner: Runner, vocab_size: int, seed: int) -> PressureReport:
    """Play the three phases; the runner must have ``_AMPLE_BLOCKS`` blocks of 4."""
    dice = random.Random(seed)
    fitting = [_request(dice, vocab_size, _FITTING_OUTPUT) for _ in range(_FITTING)]
    pressing = [_request(dice, vocab_size, _PRESSING_OUTPUT) for _ in range(_PRESSING)]
    watched = _Watched(runner)
    player = Player(_limits(_NUM_BLOCKS), watched, vocab_size)
    phases, differing, missing = [], 0, 0
    for name, load in (("before", fitting), ("pressure", pressing), ("after", fitting)):
        watched.seen.clear()
        start = time.perf_counter()
        answers = [choices[0] for choices in player.play(load, (0,) * len(load))]
        seconds = time.perf_counter() - start
        phases.append(
            Phase(
                name=name,
                requests=len(load),
                preempted=sum(sequence.preemptions > 0 for sequence in watched.seen),
                tokens=sum(len(answer.tokens) for answer in answers),
                seconds=seconds,
            )
        )
        for index, answer in enumerate(answers):
            alone = _alone(load, index, runner, vocab_size)
            differing += (answer.tokens, answer.logprobs) != (alone.tokens, alone.logprobs)
            missing += len(answer.tokens) - len(answer.logprobs)
    return PressureReport(tuple(phases), differing, missing)


def _request(dice: random.Random, vocab_size: int, output: int) -> Request:
    return Request(
        id="pressure",
        prompt=tuple(dice.randrange(vocab_size) for _ in range(dice.randint(8, 20))),
        sampling=SamplingParams(
            max_tokens=output, seed=dice.getrandbits(64), logprobs=1, ignore_eos=True
        ),
    )


def _limits(num_blocks: int) -> Schedule:
    return Schedule(
        order=(),
        at_step=(),
        batching=Batching.CONTINUOUS,
        token_budget=256,
        seats=_PRESSING,
        num_blocks=num_blocks,
        block_size=_BLOCK_SIZE,
        prefix_cache=True,
    )


def _alone(load: Sequence[Request], index: int, runner: Runner, vocab_size: int) -> Answer:
    player = Player(_limits(_AMPLE_BLOCKS), runner, vocab_size)
    return player.play([load[index]], (0,))[0][0]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report as JSON; 0 when every request got what it gets alone, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="pressure", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--cpu-math", choices=("auto", "float32", "int8"), default="float32")
    arguments = parser.parse_args(argv)
    try:
        spec = read_spec(resolve_model(arguments.model))
        compute = Compute(math=arguments.cpu_math, threads=arguments.threads)
        runner = make_runner(spec, compute, num_blocks=_AMPLE_BLOCKS, block_size=_BLOCK_SIZE)
    except StartupError as error:
        print(f"pressure: {error}", file=sys.stderr)
        return 2
    runner.warm_up(lambda _: None)
    report = study(runner, spec.vocab_size, arguments.seed)
    fields = asdict(report)
    for phase, made in zip(fields["phases"], report.phases, strict=True):
        phase["tokens_per_s"] = round(made.tokens_per_s, 1)
    print(json.dumps(fields, indent=2))
    return 0 if report.differing == report.missing_logprobs == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
