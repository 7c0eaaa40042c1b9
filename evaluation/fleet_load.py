"""What comes to a cluster of some size: a recorded course of load, stretched and multiplied.

Owns how a trace of one machine becomes the load of many: times are multiplied by a factor, and each
request comes a number of times, each time later by a draw of its own, so that copies are neither at
one moment nor smoothed away. Without a trace, the course of ``rates_azure_code.json`` (requests in
each ten seconds of it) with arrivals by Poisson's law, and lengths of ``lengths_azure_code.json``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import cast

from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.evaluation.guard_traffic import Given
from chairlift.evaluation.lengths import Lengths, parse_lengths
from chairlift.evaluation.traces import Arrival

__all__ = ["Scaled", "fitted_arrivals", "fleet_load", "rates_of"]

RATES = "rates_azure_code.json"
SLICE_S = 10.0


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a course becomes a load.

    Attributes:
        stretch: times are multiplied by it.
        copies: of each request; of 2.5, half of the requests come three times.
        spread_s: after stretching, within which the copies of a request come.
    """

    stretch: float
    copies: float
    spread_s: float
    seed: int = 0


def fitted_arrivals(seed: int = 0) -> list[Arrival]:
    """A course like the trace's, from the numbers that ship."""
    shipped = json.loads(files("chairlift.evaluation").joinpath(RATES).read_text("utf-8"))
    dice = random.Random(f"course {seed}")
    lengths = parse_lengths("quantiles:azure_code", "quantiles:azure_code")
    times = [
        (number + dice.random()) * shipped["slice_s"]
        for number, requests in enumerate(shipped["requests"])
        for _ in range(requests)
    ]
    return [Arrival(at_s, lengths.draw(dice)) for at_s in sorted(times)]


def rates_of(arrivals: Sequence[Arrival]) -> list[int]:
    """Requests in each slice of a trace: what ``fitted_arrivals`` goes by."""
    counts = [0] * (int(arrivals[-1].at_s // SLICE_S) + 1)
    for each in arrivals:
        counts[int(each.at_s // SLICE_S)] += 1
    return counts


def fleet_load(arrivals: Sequence[Arrival], scaled: Scaled) -> list[Given]:
    """The requests, in order of time."""
    dice = random.Random(f"copies {scaled.seed}")
    given = [
        Given(at_s, _request(each.lengths))
        for each in arrivals
        for at_s in _times(each.at_s * scaled.stretch, scaled, dice)
    ]
    return sorted(given, key=lambda each: each.at_s)


def _times(at_s: float, scaled: Scaled, dice: random.Random) -> Iterator[float]:
    whole = int(scaled.copies)
    for copy in range(whole + (dice.random() < scaled.copies - whole)):
        yield at_s + (dice.uniform(0.0, scaled.spread_s) if copy else 0.0)


def _request(lengths: Lengths) -> Request:
    # A range is as good as a tuple to all that count the prompt, and takes no memory.
    prompt = cast(tuple[int, ...], range(lengths.prompt))
    sampling = SamplingParams(max_tokens=lengths.output, temperature=0.0, ignore_eos=True)
    return Request(id="", prompt=prompt, sampling=sampling, tenant="trace")
