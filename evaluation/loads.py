"""The loads that servers and engines are compared under, request by request.

Owns what each load asks for; knows nothing of who serves it. A load follows from its name and a
seed alone, so everybody who is compared gets the same prompts, by token id, the same output
lengths and the same times. Runs that are set side by side in one round share a seed; rounds differ
in it, so that no cache of prompts helps in the second.

    a        64 requests of mixed lengths, 16 at a time
    b        one stream: 4 requests, one after the other, 96 tokens in, 128 out
    c        32 at once, 64 in, 128 out
    d-…-…    96 requests that arrive by themselves, lengths as in a public trace, an eighth of each
    e        32 requests that share their first 2,000 tokens, 8 at a time

Load d is one of six: lengths of the Azure code or conversation trace, at 50, 80 or 95% of
a capacity that ``capacity_load`` measures. Its arrivals are bursts (coefficient of variation 2).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, repeat

from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.lengths import parse_lengths, prompt_ids

__all__ = [
    "LOADS",
    "TRACES",
    "Load",
    "capacity_load",
    "closed_load",
    "expand",
    "open_load",
    "open_name",
    "warm_up_load",
]

_VOCAB_SIZE = 30_000
"""Of the models that are usual, all have as many."""

_BURSTS = "gamma:2"
_OPEN_REQUESTS = 96
_CAPACITY_IN_FLIGHT = 32

TRACES = ("code", "conv")
_SHARES = (50, 80, 95)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for.

    Attributes:
        in_flight: so many requests at a time, whenever they arrive; None: each at its time.
    """

    name: str
    work: tuple[Work, ...]
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Requests of one kind; ``shared`` tokens at the start of every prompt are the same."""

    requests: int
    prompt: str
    output: str
    in_flight: int
    shared: int = 0


_CLOSED = {
    "a": _Shape(
        requests=64,
        prompt="lognormal:median=96,sigma=0.8,min=16,max=512",
        output="lognormal:median=64,sigma=1,min=8,max=256",
        in_flight=16,
    ),
    "b": _Shape(requests=4, prompt="constant:96", output="constant:128", in_flight=1),
    "c": _Shape(requests=32, prompt="constant:64", output="constant:128", in_flight=32),
    "e": _Shape(requests=32, prompt="constant:64", output="constant:64", in_flight=8, shared=2000),
}

LOADS = ("a", "b", "c", *(f"d-{trace}-{share}" for trace in TRACES for share in _SHARES), "e")


def expand(names: Iterable[str]) -> list[str]:
    """Names of loads, where ``d`` stands for all six; ValueError for one that there is not."""
    found: list[str] = []
    for name in names:
        matches = [each for each in LOADS if name == each or each.startswith(f"{name}-")]
        if not matches:
            raise ValueError(f"no load {name!r}; there are {', '.join(LOADS)}")
        found += matches
    return found


def closed_load(name: str, seed: str) -> Load:
    """One of the loads that keep so many requests under way."""
    shape = _CLOSED[name]
    rng = random.Random(f"load {name} {seed}")
    return Load(name, _work(shape, repeat(0.0), rng), shape.in_flight)


def open_name(name: str) -> tuple[str, float] | None:
    """The trace of load d and its share of the capacity; None for the other loads."""
    if not name.startswith("d-"):
        return None
    _, trace, share = name.split("-")
    return trace, int(share) / 100


def open_load(name: str, seed: str, rate: float) -> Load:
    """One of load d; ``rate`` is in requests per second."""
    trace, _, _ = name.removeprefix("d-").partition("-")
    rng = random.Random(f"load {name} {seed}")
    times = arrival_times(parse_arrivals(_BURSTS), rate, rng)
    return Load(name, _work(_traced(trace), times, rng), None)


def capacity_load(trace: str, seed: str) -> Load:
    """The lengths of load d, as many requests at a time as fill a batch."""
    rng = random.Random(f"capacity {trace} {seed}")
    shape = _traced(trace)
    return Load(f"capacity of {trace}", _work(shape, repeat(0.0), rng), shape.in_flight)


def warm_up_load(seed: str) -> Load:
    """A few requests that nobody measures."""
    shape = _Shape(requests=8, prompt="constant:64", output="constant:16", in_flight=8)
    return Load("warm-up", _work(shape, repeat(0.0), random.Random(f"warm-up {seed}")), 8)


def _traced(trace: str) -> _Shape:
    scaled = f"quantiles:azure_{trace},scale=0.125"
    return _Shape(
        requests=_OPEN_REQUESTS, prompt=scaled, output=scaled, in_flight=_CAPACITY_IN_FLIGHT
    )


def _work(shape: _Shape, times: Iterable[float], rng: random.Random) -> tuple[Work, ...]:
    lengths, ids = parse_lengths(shape.prompt, shape.output), prompt_ids(_VOCAB_SIZE)
    shared = rng.choices(ids, k=shape.shared)
    work = []
    for at_s in islice(times, shape.requests):
        drawn = lengths.draw(rng)
        work.append(Work(at_s, (*shared, *rng.choices(ids, k=drawn.prompt)), drawn.output))
    return tuple(work)
