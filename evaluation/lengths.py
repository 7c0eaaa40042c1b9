"""Lengths of prompts and outputs, drawn from a distribution that one short text names.

Owns the texts and the arithmetic; knows nothing of requests or arrivals. Every distribution is
the inverse of its cumulative function, so randomness stays with the caller:

    constant:64
    uniform:16,256                                   whole numbers, both ends included
    lognormal:median=96,sigma=0.8,min=16,max=512     clipped, so that the bounds carry the rest
    quantiles:azure_code,scale=0.125,min=1,max=512   a fitted table that ships with Chairlift

Output lengths of a fitted table depend on the quantile of their request's prompt, so they keep
the trace's rank correlation, also when the prompts come from another distribution.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from statistics import NormalDist
from typing import Protocol

__all__ = [
    "Distribution",
    "FittedTable",
    "LengthSource",
    "Lengths",
    "fitted_names",
    "interpolate",
    "load_table",
    "parse_lengths",
    "prompt_ids",
]

_TABLE_PREFIX = "lengths_"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request; both at least 1."""

    prompt: int
    output: int


class Distribution(Protocol):
    """A length as a function of its quantile in [0, 1) and of the prompt's quantile."""

    def __call__(self, quantile: float, prompt_quantile: float) -> float: ...


@dataclass(frozen=True, slots=True)
class FittedTable:
    """Joint quantiles of prompt and output lengths of one trace.

    Attributes:
        prompt_levels: the quantiles, from 0 to 1, that ``prompt`` gives.
        output_levels: the same for each row of ``output``.
        output: one row for each of as many equal shares of the requests, ordered by prompt.
    """

    prompt_levels: tuple[float, ...]
    prompt: tuple[float, ...]
    output_levels: tuple[float, ...]
    output: tuple[tuple[float, ...], ...]

    def prompt_at(self, quantile: float, prompt_quantile: float) -> float:
        """As a Distribution; the two quantiles are the same one."""
        return interpolate(self.prompt_levels, self.prompt, quantile)

    def output_at(self, quantile: float, prompt_quantile: float) -> float:
        row = min(int(prompt_quantile * len(self.output)), len(self.output) - 1)
        return interpolate(self.output_levels, self.output[row], quantile)


@dataclass(frozen=True, slots=True)
class LengthSource:
    """Draws the lengths of one request after another."""

    prompt: Distribution
    output: Distribution

    def draw(self, rng: random.Random) -> Lengths:
        of_prompt, of_output = rng.random(), rng.random()
        return Lengths(
            prompt=_whole(self.prompt(of_prompt, of_prompt)),
            output=_whole(self.output(of_output, of_prompt)),
        )


def parse_lengths(prompt: str, output: str) -> LengthSource:
    """Read the texts for prompts and outputs; ValueError says what is wrong with which."""
    return LengthSource(
        prompt=_parse("prompt lengths", prompt, of_output=False),
        output=_parse("output lengths", output, of_output=True),
    )


def prompt_ids(vocab_size: int) -> range:
    """The token ids that random prompts are made of: the lowest are often control tokens."""
    return range(min(1000, vocab_size // 4), vocab_size)


def fitted_names() -> list[str]:
    """The tables that ship with Chairlift."""
    names = (entry.name for entry in files("chairlift.evaluation").iterdir())
    return sorted(
        name.removeprefix(_TABLE_PREFIX).removesuffix(".json")
        for name in names
        if name.startswith(_TABLE_PREFIX) and name.endswith(".json")
    )


def load_table(name: str) -> FittedTable:
    """A table that ships with Chairlift; ValueError when there is none of that name."""
    if name not in fitted_names():
        raise ValueError(f"no fitted table {name!r}; there are {', '.join(fitted_names())}")
    text = files("chairlift.evaluation").joinpath(f"{_TABLE_PREFIX}{name}.json").read_text("utf-8")
    fields = json.loads(text)
    return FittedTable(
        prompt_levels=tuple(fields["prompt_levels"]),
        prompt=tuple(fields["prompt"]),
        output_levels=tuple(fields["output_levels"]),
        output=tuple(tuple(row) for row in fields["output"]),
    )


def interpolate(levels: Sequence[float], values: Sequence[float], quantile: float) -> float:
    """The value at ``quantile``, on straight lines between the given points."""
    for i in range(1, len(levels)):
        if quantile <= levels[i]:
            share = (quantile - levels[i - 1]) / (levels[i] - levels[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]


def _whole(length: float) -> int:
    return max(1, round(length))


def _parse(what: str, text: str, *, of_output: bool) -> Distribution:
    kind, _, rest = text.partition(":")
    words = rest.split(",")
    try:
        match kind:
            case "constant":
                return _constant(words)
            case "uniform":
                return _uniform(words)
            case "lognormal":
                return _lognormal(_numbers(words, {"median", "sigma", "min", "max"}))
            case "quantiles":
                table = load_table(words[0])
                inner: Distribution = table.output_at if of_output else table.prompt_at
                return _bounded(inner, _numbers(words[1:], {"scale", "min", "max"}))
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None
    raise ValueError(f"{what} {text!r}: expected constant:…, uniform:…, lognormal:… or quantiles:…")


def _constant(words: list[str]) -> Distribution:
    if len(words) != 1:
        raise ValueError("write constant:LENGTH")
    length = _positive(words[0])
    return lambda _quantile, _prompt_quantile: length


def _uniform(words: list[str]) -> Distribution:
    if len(words) != 2:
        raise ValueError("write uniform:LEAST,GREATEST")
    least, greatest = _positive(words[0]), _positive(words[1])
    if least > greatest or least != int(least) or greatest != int(greatest):
        raise ValueError("uniform needs two whole numbers, the smaller one first")
    return lambda quantile, _prompt_quantile: least + int(quantile * (greatest - least + 1))


def _lognormal(numbers: Mapping[str, float]) -> Distribution:
    if "median" not in numbers or "sigma" not in numbers:
        raise ValueError("lognormal needs median and sigma")
    return _bounded(partial(_lognormal_at, math.log(numbers["median"]), numbers["sigma"]), numbers)


def _lognormal_at(mu: float, sigma: float, quantile: float, _prompt_quantile: float) -> float:
    # inv_cdf is not defined at the very ends, which a random number in [0, 1) can touch.
    return math.exp(mu + sigma * NormalDist().inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12)))


def _bounded(inner: Distribution, numbers: Mapping[str, float]) -> Distribution:
    scale, least = numbers.get("scale", 1.0), numbers.get("min", 1.0)
    greatest = numbers.get("max", math.inf)
    if least > greatest:
        raise ValueError("min is greater than max")
    return lambda quantile, prompt_quantile: min(
        max(scale * inner(quantile, prompt_quantile), least), greatest
    )


def _numbers(words: list[str], known: set[str]) -> dict[str, float]:
    """``["median=96", "sigma=0.8"]`` to numbers by name."""
    numbers = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise ValueError(f"unknown setting {word!r}; there are {', '.join(sorted(known))}")
        numbers[name] = _positive(value)
    return numbers


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{text} is not above 0")
    return value
