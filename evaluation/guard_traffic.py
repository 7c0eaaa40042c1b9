"""What comes in a simulated world: by the clock, one by one, or from a crowd.

Owns how requests are drawn; when they come and what becomes of them is ``guard_world``'s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from chairlift.cluster.protocol import Priority, Request, SamplingParams
from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.lengths import Lengths, parse_lengths

__all__ = ["Crowd", "Given", "Traffic"]


@dataclass(frozen=True, slots=True)
class Given:
    """One request at a time, whose client leaves at another if no token has come by then."""

    at_s: float
    request: Request
    leaves_s: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one tenant sends in one class, from ``begin_s`` on, for ``lasts_s``.

    Attributes:
        rate: requests a second.
        arrivals, prompt, output: see ``arrivals`` and ``lengths``.
    """

    tenant: str
    rate: float
    begin_s: float = 0.0
    lasts_s: float = float("inf")
    arrivals: str = "poisson"
    prompt: str = "uniform:16,64"
    output: str = "uniform:8,32"
    priority: Priority = Priority.STANDARD
    weight: float = 1.0

    def requests(self, seed: int, number: int) -> Iterator[Given]:
        """In order of time; ``number``: tells it from others of the same seed."""
        dice = random.Random(f"traffic {seed} {number}")
        lengths = parse_lengths(self.prompt, self.output)
        for at in arrival_times(parse_arrivals(self.arrivals), self.rate, dice):
            if at >= self.lasts_s:
                return
            yield Given(self.begin_s + at, _request(self, lengths.draw(dice)))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients of one tenant of which each asks again as soon as it has its answer.

    However slow the service is, no more than ``clients`` are under way; and however fast it turns
    them away, they come again.

    Attributes:
        pause_s: from the end of an answer, or a refusal, to the next request.
        prompt, output: see ``lengths``.
    """

    tenant: str
    clients: int
    pause_s: float = 0.05
    prompt: str = "uniform:16,64"
    output: str = "uniform:8,32"
    priority: Priority = Priority.STANDARD
    weight: float = 1.0

    def request(self, dice: random.Random) -> Request:
        """The next one of a client."""
        return _request(self, parse_lengths(self.prompt, self.output).draw(dice))


def _request(sender: Traffic | Crowd, lengths: Lengths) -> Request:
    return Request(
        id="",
        prompt=(1,) * lengths.prompt,
        sampling=SamplingParams(max_tokens=lengths.output),
        tenant=sender.tenant,
        priority=sender.priority,
        weight=sender.weight,
    )
