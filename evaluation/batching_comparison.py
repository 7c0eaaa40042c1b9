"""Continuous against static batching on one engine, fairly.

Owns the comparison: which work, in which order the modes run, and what follows from it. On one
engine, with the same seats and the same work, the modes take turns: forwards in the first round,
backwards in the second, and so on, so that drift of the machine favours none. Each round draws new
work, and one round gives one ratio: the requests of one run share a queue and are no samples of
their own.

Output lengths are exact, for end tokens are ignored. What is measured is held against what the
lengths allow (``batching_ceiling``): a ratio above it means that the baseline is broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from statistics import median

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.batching_ceiling import continuous_steps, static_steps
from chairlift.evaluation.engine_run import EngineRun, EngineSizes, Work, run_engine
from chairlift.evaluation.lengths import parse_lengths, prompt_ids
from chairlift.workers.sequence import Runner

__all__ = ["BASELINES", "Comparison", "Round", "StudyPlan", "compare", "draw_work", "run_round"]

BASELINES = (Batching.STATIC, Batching.STATIC_SORTED)
_MODES = (Batching.CONTINUOUS, *BASELINES)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The settings of one study.

    Attributes:
        prompt_lengths, output_lengths: as ``lengths`` reads them.
        seats: sequences that run at the same time.
        requests: of one round.
        rounds: each runs every mode once.
        rate: arrivals per second, Poisson; None when all are there from the start.
        seed: of the work; each round has its own.
    """

    prompt_lengths: str
    output_lengths: str
    seats: int
    requests: int
    rounds: int
    rate: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """Every mode once, over the same work."""

    work: tuple[Work, ...]
    runs: dict[Batching, EngineRun]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Continuous batching against one baseline.

    Attributes:
        ratios: output tokens per second over the baseline's, by round.
        ceilings: what each round's output lengths allow at most, for batches in order of arrival
            or, for the sorted baseline, for as many steps as it took: which batches it forms is no
            matter of output lengths alone. None where work arrives over time.
    """

    baseline: Batching
    ratios: tuple[float, ...]
    ceilings: tuple[float, ...] | None

    @property
    def median_ratio(self) -> float:
        return median(self.ratios)

    @property
    def above_ceiling(self) -> bool:
        pairs = zip(self.ratios, self.ceilings or (), strict=False)
        return any(ratio > limit for ratio, limit in pairs)


def draw_work(plan: StudyPlan, vocab_size: int) -> list[tuple[Work, ...]]:
    """The work of each round; prompts are random tokens.

    Raises:
        ValueError: the lengths cannot be read.
    """
    lengths = parse_lengths(plan.prompt_lengths, plan.output_lengths)
    ids, rounds = prompt_ids(vocab_size), []
    for i in range(plan.rounds):
        rng = random.Random(f"{plan.seed} {i}")
        times = (
            repeat(0.0)
            if plan.rate is None
            else arrival_times(parse_arrivals("poisson"), plan.rate, rng)
        )
        work = []
        for at_s in islice(times, plan.requests):
            drawn = lengths.draw(rng)
            work.append(Work(at_s, tuple(rng.choices(ids, k=drawn.prompt)), drawn.output))
        rounds.append(tuple(work))
    return rounds


def run_round(
    number: int,
    work: tuple[Work, ...],
    runner: Runner,
    sizes: EngineSizes,
    on_run: Callable[[EngineRun], None],
) -> Round:
    """Run each mode once; in round 0, 2, … forwards, in the others backwards."""
    order = _MODES if number % 2 == 0 else reversed(_MODES)
    runs = {}
    for batching in order:
        runs[batching] = run_engine(work, batching, runner, sizes)
        on_run(runs[batching])
    return Round(work, runs)


def compare(rounds: Sequence[Round], baseline: Batching, seats: int) -> Comparison:
    """Set continuous batching against one baseline."""
    together = all(one.at_s == 0.0 for each in rounds for one in each.work)
    return Comparison(
        baseline=baseline,
        ratios=tuple(
            each.runs[Batching.CONTINUOUS].output_tokens_per_s
            / each.runs[baseline].output_tokens_per_s
            for each in rounds
        ),
        ceilings=tuple(_ceiling(each, baseline, seats) for each in rounds) if together else None,
    )


def _ceiling(each: Round, baseline: Batching, seats: int) -> float:
    outputs = [one.output for one in each.work]
    if baseline is Batching.STATIC:
        return static_steps(outputs, seats) / continuous_steps(outputs, seats)
    return each.runs[baseline].steps / continuous_steps(outputs, seats)
