"""The requests of one round of a study: who asks what, and when.

Owns how each source of a plan becomes requests; knows nothing of who serves them. They follow from
plan, workload, round and vocabulary alone, so that every arm of a round gets the same ones.

    trace          consecutive pieces by round; a stated file, told by its hash
    drawn          a process of arrivals, lengths from distributions
    conversations  each question after all that was said before
    adversary      made to hurt

Prompts are random token ids, equal where the source says that they have something in common.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.lengths import Lengths, parse_lengths, prompt_ids
from chairlift.evaluation.servegen import draw_arrivals, read_mix
from chairlift.evaluation.study_files import sha256_of
from chairlift.evaluation.study_plan import (
    Adversary,
    Conversations,
    Drawn,
    Plan,
    TokenTargets,
    Trace,
    Workload,
)
from chairlift.evaluation.traces import Arrival, read_trace

__all__ = ["Asked", "draw"]

_TENANTS = 8
"""Made up where a source has none."""

_BLOCK = 512
"""Tokens of a block of a Mooncake trace, before it is scaled."""

_FLOOD = {"flood": 10.0, "light_1": 1.0, "light_2": 1.0, "light_3": 1.0, "light_4": 1.0}
_LONG_EVERY, _LONG_TIMES = 20, 20
_COLD_EVERY = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        number: within the round, from 0, in order of time.
        at_s: when it is meant to be sent, from the start.
        output: exactly how many tokens it will have.
        gives_up_after_s: its client leaves that has no first token by then.
    """

    number: int
    tenant: str
    at_s: float
    prompt: tuple[int, ...]
    output: int
    gives_up_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request whose prompt is not made yet: ``shared`` tokens, and then some of its own."""

    at_s: float
    tenant: str
    prompt: int
    output: int
    shared: tuple[int, ...] = ()


def draw(
    plan: Plan, workload_name: str, round_number: int, vocab_size: int, traces: Path | None
) -> tuple[Asked, ...]:
    """The requests of one round.

    Args:
        plan: the study's.
        workload_name: of the plan.
        round_number: from 0.
        vocab_size: token ids are below it.
        traces: folder of traces; None where no workload needs one.

    Raises:
        ConfigError: a trace is not there, is another one, cannot be read, or ends too soon.
    """
    workload = plan.workloads[workload_name]
    source, seed = workload.source, f"{plan.seed} {workload_name}"
    dice, ids = random.Random(f"{seed} {round_number}"), prompt_ids(vocab_size)
    drafts: Iterable[_Draft]
    match source:
        case Trace():
            piece = _piece(source, workload.requests, round_number, seed, traces)
            drafts = _of_trace(piece, workload, seed, ids)
        case Drawn():
            drafts = _drawn(source, workload, dice)
        case Conversations():
            drafts = _conversations(source, workload, plan.targets[0], (dice, ids))
        case Adversary():
            drafts = _adversary(source, workload, (dice, ids))
    return tuple(
        Asked(
            number=number,
            tenant=each.tenant,
            at_s=0.0 if workload.together else each.at_s * workload.scale.time,
            prompt=_prompt(each, min(each.prompt, workload.limits.prompt), dice, ids),
            output=min(each.output, workload.limits.output),
            gives_up_after_s=workload.gives_up_after_s,
        )
        for number, each in enumerate(drafts)
    )


def _piece(
    source: Trace, requests: int, round_number: int, seed: str, traces: Path | None
) -> list[tuple[int, Arrival]]:
    """Those of the round, with their numbers in the trace; times count from the first."""
    if traces is None:
        raise ConfigError(f"the trace {source.file} is wanted: say in which folder traces are")
    file = traces / source.file
    if (found := sha256_of(file)) != source.sha256:
        raise ConfigError(f"{file} has the SHA-256 {found}, the plan wants {source.sha256}")
    first = round_number * requests
    try:
        if file.suffix == ".json":
            mix = read_mix(file.read_text("utf-8"))
            arrivals = draw_arrivals(mix, seed, float(source.begin))
            piece = list(islice(arrivals, first, first + requests))
        else:
            first += source.begin
            piece = read_trace(file)[first : first + requests]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the trace {file}: {error}") from None
    if len(piece) < requests:
        raise ConfigError(
            f"the trace {file} ends too soon: round {round_number} takes requests {first} to "
            f"{first + requests - 1}, and there are {first + len(piece) if piece else 'fewer'}"
        )
    start = piece[0].at_s
    return [(first + i, replace(each, at_s=each.at_s - start)) for i, each in enumerate(piece)]


def _of_trace(
    piece: Sequence[tuple[int, Arrival]], workload: Workload, seed: str, ids: range
) -> Iterator[_Draft]:
    block = _scaled(_BLOCK, workload.scale.prompt)
    for number, each in piece:
        prompt = _scaled(each.lengths.prompt, workload.scale.prompt)
        blocks = each.blocks[: -(-min(prompt, workload.limits.prompt) // block)]
        yield _Draft(
            at_s=each.at_s,
            tenant=f"client_{each.client}" if each.client else _tenant(number),
            prompt=prompt,
            output=_scaled(each.lengths.output, workload.scale.output),
            shared=tuple(
                token
                for name in blocks
                for token in random.Random(f"{seed} block {name}").choices(ids, k=block)
            ),
        )


def _drawn(source: Drawn, workload: Workload, dice: random.Random) -> Iterator[_Draft]:
    lengths = parse_lengths(source.prompt, source.output)
    names, shares = list(source.tenants), list(source.tenants.values())
    times = arrival_times(parse_arrivals(source.arrivals), source.rate, dice)
    for at_s in islice(times, workload.requests):
        drawn = _scaled_lengths(lengths.draw(dice), workload)
        (tenant,) = dice.choices(names, shares)
        yield _Draft(at_s, tenant, drawn.prompt, drawn.output)


def _conversations(
    source: Conversations,
    workload: Workload,
    targets: TokenTargets,
    random_ids: tuple[random.Random, range],
) -> list[_Draft]:
    """The first ones of all the turns, in order of time.

    What was answered stands in later questions as random tokens, as many as were asked for: the
    load is open and must not depend on who serves it.
    """
    dice, ids = random_ids
    lengths = parse_lengths(source.question, source.answer)
    system = tuple(dice.choices(ids, k=round(source.system * workload.scale.prompt)))
    drafts: list[_Draft] = []
    begins = arrival_times(parse_arrivals("poisson"), source.rate, dice)
    for number, begin_s in enumerate(begins):
        if sum(each.at_s <= begin_s for each in drafts) >= workload.requests:
            break
        at_s, said = begin_s, system
        for _ in range(source.turns):
            drawn = _scaled_lengths(lengths.draw(dice), workload)
            said += tuple(dice.choices(ids, k=drawn.prompt))
            drafts.append(_Draft(at_s, _tenant(number), len(said), drawn.output, said))
            said += tuple(dice.choices(ids, k=drawn.output))
            answered_s = targets.first_token_s + (drawn.output - 1) * targets.per_token_s
            at_s += answered_s + dice.expovariate(1 / source.think_s)
    return sorted(drafts, key=lambda each: each.at_s)[: workload.requests]


def _adversary(
    source: Adversary, workload: Workload, random_ids: tuple[random.Random, range]
) -> Iterator[_Draft]:
    dice, ids = random_ids
    prompt = _scaled(source.prompt, workload.scale.prompt)
    output = _scaled(source.output, workload.scale.output)
    hot = tuple(dice.choices(ids, k=prompt))
    times = arrival_times(parse_arrivals("poisson"), source.rate, dice)
    for number, at_s in enumerate(islice(times, workload.requests)):
        match source.name:
            case "long_among_short" if number % _LONG_EVERY == _LONG_EVERY // 2:
                yield _Draft(at_s, "long", _LONG_TIMES * prompt, output)
            case "long_among_short":
                yield _Draft(at_s, "short", prompt, output)
            case "identical":
                yield _Draft(at_s, _tenant(number), prompt, output)
            case "flood":
                (tenant,) = dice.choices(list(_FLOOD), list(_FLOOD.values()))
                yield _Draft(at_s, tenant, prompt, output)
            case "cold_under_hot" if number % _COLD_EVERY == _COLD_EVERY // 2:
                yield _Draft(at_s, "cold", prompt, output)
            case "cold_under_hot":
                yield _Draft(at_s, "hot", prompt, output, hot)


def _prompt(draft: _Draft, length: int, dice: random.Random, ids: range) -> tuple[int, ...]:
    own = max(0, length - len(draft.shared))
    return (*draft.shared[:length], *dice.choices(ids, k=own))


def _scaled(length: int, factor: float) -> int:
    return max(1, round(length * factor))


def _scaled_lengths(lengths: Lengths, workload: Workload) -> Lengths:
    return Lengths(
        prompt=_scaled(lengths.prompt, workload.scale.prompt),
        output=_scaled(lengths.output, workload.scale.output),
    )


def _tenant(number: int) -> str:
    """The same for the same number, whatever else changes."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return f"tenant_{digest[0] % _TENANTS + 1}"
