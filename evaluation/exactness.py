"""The report on promise 1: ``python -m chairlift.evaluation.exactness --runs 500``.

Each request is first answered alone: fresh engine, whole prompt in one step, no prefix cache. Then
random schedules vary everything that must not matter (company, order and time of arrival, chunks,
seats, preemption by a small pool, prefix cache off, on and warm, batching mode), and every token
and every bit of every log probability is compared with what the request got alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Batching, Request, SamplingParams
from chairlift.evaluation.exactness_run import Answer, Schedule, play
from chairlift.evaluation.flags import count
from chairlift.evaluation.rank_processes import on_ranks
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.sequence import Runner
from chairlift.workers.shards import check_degree
from chairlift.workers.tensor_parallel import Group

__all__ = ["Report", "compare", "draw_requests", "draw_schedule", "main", "study"]

_BLOCK_SIZE = 4
_MAX_BLOCKS = 640
_MAX_OUTPUT = 16
_WORST = 10


@dataclass(slots=True)
class Report:
    """What was varied, and what differed."""

    runs: int = 0
    answers: int = 0
    tokens: int = 0
    logprobs: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    batching: dict[str, int] = field(default_factory=dict)
    differing_tokens: int = 0
    differing_logprobs: int = 0
    first_differences: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return self.differing_tokens == self.differing_logprobs == 0


def draw_requests(dice: random.Random, vocab_size: int, count: int) -> list[Request]:
    """Requests of all kinds: some share a prefix, some want two choices, all tell logprobs."""
    shared = [dice.randrange(vocab_size) for _ in range(7 * _BLOCK_SIZE)]
    requests = []
    for index in range(count):
        own = [dice.randrange(vocab_size) for _ in range(dice.randint(1, 24))]
        prompt = (shared if index % 2 else []) + own
        requests.append(
            Request(
                id=f"request-{index}",
                prompt=tuple(prompt),
                sampling=_draw_sampling(dice, index),
                n=dice.choice((1, 1, 2)),
            )
        )
    return requests


def _draw_sampling(dice: random.Random, index: int) -> SamplingParams:
    greedy = index % 3 == 0
    return SamplingParams(
        max_tokens=dice.randint(2, _MAX_OUTPUT),
        seed=dice.getrandbits(64),
        temperature=0.0 if greedy else dice.choice((0.7, 1.0, 1.5)),
        top_p=dice.choice((1.0, 0.9)),
        top_k=dice.choice((0, 0, 40)),
        min_p=dice.choice((0.0, 0.05)),
        presence_penalty=dice.choice((0.0, 0.5)),
        frequency_penalty=dice.choice((0.0, 0.5)),
        repetition_penalty=dice.choice((1.0, 1.2)),
        logprobs=dice.choice((0, 3)),
        prompt_logprobs=dice.choice((None, None, None, 0)),
        ignore_eos=True,
    )


def draw_schedule(dice: random.Random, requests: Sequence[Request]) -> Schedule:
    """A schedule of some of the requests; half of the pools are too small for all at once."""
    order = [dice.randrange(len(requests)) for _ in range(dice.randint(1, 5))]
    longest = max(
        -(-(len(requests[i].prompt) + requests[i].sampling.max_tokens) // _BLOCK_SIZE)
        for i in order
    )
    tight = dice.random() < 0.5
    return Schedule(
        order=tuple(order),
        at_step=tuple(dice.choice((0, 0, 1, 2, 5, 9)) for _ in order),
        batching=dice.choice((*Batching, Batching.CONTINUOUS, Batching.CONTINUOUS)),
        token_budget=dice.choice((5, 16, 33, 64, 512)),
        seats=dice.choice((1, 3, 6, 12)),
        num_blocks=longest + dice.randint(0, 6) if tight else _MAX_BLOCKS,
        block_size=_BLOCK_SIZE,
        prefix_cache=dice.random() < 0.7,
        rounds=dice.choice((1, 1, 2)),
    )


def compare(alone: Answer, answer: Answer, where: str, report: Report) -> None:
    """Count what differs in one answer."""
    report.answers += 1
    report.tokens += len(alone.tokens)
    report.cached_tokens += answer.cached_tokens
    tokens = _count_differences(alone.tokens, answer.tokens)
    ours = alone.logprobs + alone.prompt_logprobs
    theirs = answer.logprobs + answer.prompt_logprobs
    report.logprobs += len(ours)
    logprobs = _count_differences(ours, theirs)
    report.differing_tokens += tokens
    report.differing_logprobs += logprobs
    if (tokens or logprobs) and len(report.first_differences) < _WORST:
        report.first_differences.append(f"{where}: {tokens} tokens, {logprobs} log probabilities")


def _count_differences(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = sum(a != b for a, b in zip(one, other, strict=False))
    return pairs + abs(len(one) - len(other))


def study(
    runner: Runner, vocab_size: int, runs: int, seed: int, tick: Callable[[], None]
) -> Report:
    """Compare ``runs`` random schedules with the requests alone; ``tick()`` after each."""
    dice = random.Random(seed)
    requests = draw_requests(dice, vocab_size, count=18)
    alone = [_alone(requests, index, runner, vocab_size) for index in range(len(requests))]
    report = Report()
    for run in range(runs):
        schedule = draw_schedule(dice, requests)
        result = play(requests, schedule, runner, vocab_size)
        places = list(schedule.order) * schedule.rounds
        for index, answers in zip(places, result.answers, strict=True):
            for choice, answer in enumerate(answers):
                where = f"run {run}, {requests[index].id}, choice {choice}, {schedule}"
                compare(alone[index][choice], answer, where, report)
        report.runs += 1
        report.steps += result.steps
        report.preemptions += result.preemptions
        mode = schedule.batching.value
        report.batching[mode] = report.batching.get(mode, 0) + 1
        tick()
    return report


def _alone(
    requests: Sequence[Request], index: int, runner: Runner, vocab_size: int
) -> list[Answer]:
    """A request's answers, each choice in an engine of its own kind and nothing else in it."""
    schedule = Schedule(
        order=(index,),
        at_step=(0,),
        batching=Batching.CONTINUOUS,
        token_budget=512,
        seats=1,
        num_blocks=_MAX_BLOCKS,
        block_size=_BLOCK_SIZE,
        prefix_cache=False,
    )
    return play(requests, schedule, runner, vocab_size).answers[0]


def _study_on_rank(
    group: Group, spec: ModelSpec, compute: Compute, runs: int, seed: int
) -> tuple[bool, Report]:
    """The study, as every rank does it; whether the kernels claim to be exact. Rank 0 shows it."""
    runner = make_runner(spec, compute, num_blocks=_MAX_BLOCKS, block_size=_BLOCK_SIZE, group=group)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, quiet=group.rank > 0)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("runs", total=runs)
        report = study(runner, spec.vocab_size, runs, seed, lambda: progress.advance(task))
    return runner.exact, report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study and print the report; 0 when nothing differs, 1 when something does."""
    parser = argparse.ArgumentParser(prog="exactness", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runs", type=count, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--kernels", choices=("auto", "cpp", "torch"), default="auto")
    parser.add_argument("--cpu-math", choices=("auto", "float32", "int8"), default="float32")
    parser.add_argument("--ranks", type=count, default=1, help="that compute the model together")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args(argv)
    try:
        spec = read_spec(resolve_model(arguments.model))
        check_degree(spec, arguments.ranks)
        threads = max(1, arguments.threads // arguments.ranks)
        compute = Compute(arguments.kernels, arguments.cpu_math, threads)
        asked = arguments.runs, arguments.seed
        exact, report = on_ranks(arguments.ranks, _study_on_rank, spec, compute, *asked)
    except StartupError as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2
    fields = {
        "model": spec.name,
        "cpu_math": arguments.cpu_math,
        "ranks": arguments.ranks,
        "kernels_exact": exact,
        **asdict(report),
    }
    print(json.dumps(fields, indent=2))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(fields, indent=2), encoding="utf-8")
    return 0 if report.exact else 1


if __name__ == "__main__":
    sys.exit(main())
