"""What a reader has to know beside a figure, so that it does not say more than it can.

Owns the warnings; decides nothing: verdicts (``study_verdict``) do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.batching_ceiling import continuous_steps, static_steps
from chairlift.evaluation.study_measures import MEASURES
from chairlift.evaluation.study_plan import Plan, Threshold
from chairlift.evaluation.study_run import Fate, Run
from chairlift.evaluation.study_statistics import samples_needed

__all__ = ["cautions"]

_NOTABLY_LESS = 0.01
_LENGTHS_LIKE = (0.9, 1.1)
_BESIDE = 0.05
"""Of the processors' time; what others have of it, runs do not."""


def cautions(
    plan: Plan,
    threshold: Threshold,
    pairs: Sequence[tuple[Run, Run] | None],
    estimate: float | None,
) -> tuple[str, ...]:
    """In no particular order; ``pairs``: runs of ``arm`` and of ``over`` by round, None: void."""
    there = [pair for pair in pairs if pair is not None]
    if not there:
        return ()
    told = (
        _few_for_p99(threshold, there),
        _fewer_completed(threshold, there),
        _other_lengths(threshold, there),
        _over_ceiling(plan, threshold, there, estimate),
        _beside_others(there),
        _other_rounds(plan, len(pairs)),
    )
    return tuple(each for each in told if each is not None)


def _few_for_p99(threshold: Threshold, pairs: Sequence[tuple[Run, Run]]) -> str | None:
    if threshold.by is not None or "_p99" not in threshold.measure:
        return None
    least, needed = min(len(run.outcomes) for run, _ in pairs), samples_needed(0)
    if least >= needed:
        return None
    return (
        f"the smallest run has {least} requests: its p99 is of its worst few. To show that a p99 is"
        f" kept takes {needed} requests without a miss, {samples_needed(1)} with one"
    )


def _fewer_completed(threshold: Threshold, pairs: Sequence[tuple[Run, Run]]) -> str | None:
    if threshold.over is None or not MEASURES[threshold.measure].latency:
        return None
    ours, theirs = (
        sum(o.fate is Fate.COMPLETED for pair in pairs for o in pair[i].outcomes) for i in (0, 1)
    )
    if ours >= theirs * (1 - _NOTABLY_LESS):
        return None
    return (
        f"{threshold.arm} completed {ours} requests, {threshold.over} {theirs}: latencies are of"
        " those only, and what is refused or left out makes them look better"
    )


def _other_lengths(threshold: Threshold, pairs: Sequence[tuple[Run, Run]]) -> str | None:
    """Short answers flatter latencies."""
    if threshold.over is None:
        return None
    ours = theirs = 0
    for run, other in pairs:
        done = {o.number: o for o in other.outcomes if o.fate is Fate.COMPLETED}
        for outcome in run.outcomes:
            if outcome.fate is Fate.COMPLETED and outcome.number in done:
                ours += len(outcome.tokens_s)
                theirs += len(done[outcome.number].tokens_s)
    least, most = _LENGTHS_LIKE
    if not theirs or least <= ours / theirs <= most:
        return None
    return (
        f"answers of {threshold.arm} have {ours / theirs:.2f} times the tokens of those of"
        f" {threshold.over}"
    )


def _over_ceiling(
    plan: Plan, threshold: Threshold, pairs: Sequence[tuple[Run, Run]], estimate: float | None
) -> str | None:
    """Only where all is there at the start: else how full batches are is up to the arrivals."""
    if threshold.over is None or threshold.measure != "output_tokens_per_s" or estimate is None:
        return None
    ours, theirs = plan.arms[threshold.arm], plan.arms[threshold.over]
    seats = ours.seats or plan.seats
    equal = seats == (theirs.seats or plan.seats) and pairs[0][0].replicas == 1
    together = plan.workloads[threshold.workload].together
    if theirs.batching is not Batching.STATIC or not equal or not together or threshold.by:
        return None
    asked = [[outcome.asked for outcome in run.outcomes] for run, _ in pairs]
    highest = max(static_steps(each, seats) / continuous_steps(each, seats) for each in asked)
    if estimate <= highest:
        return None
    return (
        f"output lengths allow at most {highest:.2f} at equal seats: what is above it is a fault in"
        f" {threshold.over}, or comes of prompts that shared steps with decoding"
    )


def _beside_others(pairs: Sequence[tuple[Run, Run]]) -> str | None:
    runs = [run for one, other in pairs for run in ((one,) if one is other else (one, other))]
    shares = [run.use.others or 0.0 for run in runs]
    busy = [share for share in shares if share > _BESIDE]
    if not busy:
        return None
    return (
        f"in {len(busy)} of {len(shares)} runs others had more than {_BESIDE:.0%} of the processors"
        f", up to {max(busy):.0%}"
    )


def _other_rounds(plan: Plan, rounds: int) -> str | None:
    if rounds <= plan.rounds:
        return None
    return (
        f"{rounds} rounds, where the plan says {plan.rounds}: to go on until a test is passed"
        " passes it too often"
    )
