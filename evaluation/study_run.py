"""What one run of a study left behind: every request's fate, and what the steps used.

Owns the records that all figures are computed from; knows neither how they came about nor what
follows from them. Times are seconds from the start of the run. Latencies count from when a request
was meant to be sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

__all__ = ["Fate", "Outcome", "Ride", "Run", "Use"]


class Fate(StrEnum):
    """How a request ended: exactly one way."""

    COMPLETED = "completed"
    REFUSED = "refused"
    GAVE_UP = "gave_up"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request.

    Attributes:
        number: within the run, from 0; the same in all arms of a round.
        tenant: whose it is.
        prompt, asked: tokens of its prompt, and of its output as asked for.
        intended_s, sent_s, ended_s: sent is None where it was never sent.
        tokens_s: when each output token came; a chunk's tokens have the chunk's time.
        fate, why: why says the class of a refusal or failure; "" where it completed.
        digest: of its tokens, to compare arms; None where they are not known.
        alone_s: how long it would have taken alone on an idle machine, arrival to last token.
    """

    number: int
    tenant: str
    prompt: int
    asked: int
    intended_s: float
    sent_s: float | None
    ended_s: float
    tokens_s: tuple[float, ...]
    fate: Fate
    why: str = ""
    digest: str | None = None
    alone_s: float | None = None

    @property
    def first_token_s(self) -> float | None:
        return self.tokens_s[0] - self.intended_s if self.tokens_s else None

    @property
    def end_to_end_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def slowdown(self) -> float | None:
        """End to end over alone; None where it did not complete or alone is not known."""
        if self.fate is not Fate.COMPLETED or not self.alone_s:
            return None
        return self.end_to_end_s / self.alone_s

    @property
    def gaps_s(self) -> list[float]:
        """Between one token and the next."""
        return [after - before for before, after in pairwise(self.tokens_s)]


@dataclass(frozen=True, slots=True)
class Ride:
    """One stay in a seat: request, seat, and from when to when."""

    number: int
    seat: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """What steps used; shares are weighted by time. None where the target does not tell.

    Attributes:
        steps: forward passes.
        seats, kv, budget: shares in use of seats, KV cache and token budget.
        preemptions, recomputed: sequences preempted, and tokens computed again.
        energy_j: of the processor or device, where it can be read.
        others: share of the machine's processors that what is not the study's had.
    """

    steps: int | None = None
    seats: float | None = None
    kv: float | None = None
    budget: float | None = None
    preemptions: int | None = None
    recomputed: int | None = None
    energy_j: float | None = None
    others: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One arm on one workload once.

    Attributes:
        round, order: from 0; ``order``: how many runs there were before it in the study.
        began_at: seconds of the wall clock.
        seconds: from the first intended time to the last end.
        outcomes: of everything that was offered, by number.
        rides: for the picture of seats; empty where the target does not tell.
        moves: of the Guard, as (seconds, rung).
        simulated: times are those of a model.
    """

    workload: str
    arm: str
    round: int
    order: int
    began_at: float
    seconds: float
    replicas: int
    outcomes: tuple[Outcome, ...]
    use: Use = Use()
    rides: tuple[Ride, ...] = ()
    moves: tuple[tuple[float, str], ...] = ()
    simulated: bool = False
