"""What is noted of one request while it runs.

Owns where each thing that happens to a request is counted: once, in the router's metrics and in the
tally of its series for the present second. It reads no clock, and which second it is is decided
by ``recorder``. A token costs a few additions, and a turn of its reader one entry in a sketch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.cluster.protocol import Request
from chairlift.cluster.telemetry import Bucket, Series, Tally, length_class
from chairlift.router.metrics import Outcome, RequestEnd, RouterMetrics
from chairlift.router.unloaded import Unloaded

__all__ = ["Notes", "Present", "Record", "series_of"]


def series_of(request: Request) -> Series:
    """The series that a request is counted in."""
    return Series(request.tenant, request.priority.name.lower(), length_class(len(request.prompt)))


@dataclass(slots=True)
class Present:
    """The present second.

    Attributes:
        first_token_s, per_token_s: the latency targets.
        second: of the wall clock.
        bucket: what has happened in it so far.
    """

    first_token_s: float
    per_token_s: float
    second: int
    bucket: Bucket = field(default_factory=dict)
    unloaded: Unloaded = field(default_factory=Unloaded)

    def tally(self, series: Series) -> Tally:
        tally = self.bucket.get(series)
        if tally is None:
            tally = self.bucket[series] = Tally()
        return tally


class Record:
    """One request, counted in the metrics, and in its series if there are notes of it."""

    __slots__ = ("_metrics", "_notes", "arrived_at", "first_token_s", "request")

    def __init__(
        self, request: Request, now: float, metrics: RouterMetrics, notes: Notes | None
    ) -> None:
        """A request came; times are of the router's clock."""
        self.request = request
        self.arrived_at = now
        self.first_token_s: float | None = None
        self._metrics = metrics
        self._notes = notes
        metrics.started += 1

    def sent(self, now: float) -> None:
        """It goes to a replica; not the first time, if it comes back."""
        if self._notes is not None:
            self._notes.sent(now)

    def charged(self, service: float) -> None:
        """Its tenant is charged, or is given back what was not served."""
        if self._notes is not None:
            self._notes.charged(service)

    def first_token(self, at: float, cached_tokens: int) -> None:
        """Its first token came; so many tokens of the prompt were in the cache."""
        self.first_token_s = at - self.arrived_at
        self._metrics.first_token(len(self.request.prompt), self.first_token_s)
        if self._notes is not None:
            self._notes.first_token(self.first_token_s, cached_tokens)

    def tokens(self, number: int, before: int, at: float) -> None:
        """So many tokens of a choice came, after so many others of it."""
        self._metrics.generated_tokens += number
        if self._notes is not None:
            self._notes.tokens(number, before, at)

    def next_tokens(self, number: int, elapsed_s: float) -> None:
        """So many tokens of a choice were read that came in the time since the one before."""
        self._metrics.next_tokens(number, elapsed_s)
        if self._notes is not None:
            self._notes.next_tokens(number, elapsed_s)

    def end(self, outcome: Outcome, label: str, now: float, lengths: Sequence[int]) -> None:
        """It ended, once; ``lengths``: tokens of each choice that were read."""
        self._metrics.end(
            RequestEnd(
                tenant=self.request.tenant,
                outcome=outcome,
                label=label,
                duration_s=now - self.arrived_at,
                first_token_s=self.first_token_s,
                output_tokens=sum(lengths),
            )
        )
        if self._notes is not None:
            self._notes.end(outcome, now, lengths)


class Notes:
    """What is noted of one request for its series; told what its ``Record`` is told."""

    __slots__ = (
        *("_arrived_at", "_cached_tokens", "_first_s", "_num_prompt", "_owed"),
        *("_present", "_second", "_sent", "_series", "_tally"),
    )

    def __init__(self, request: Request, now: float, present: Present) -> None:
        self._arrived_at = now
        self._num_prompt = len(request.prompt)
        self._first_s: float | None = None
        self._present = present
        self._series = series_of(request)
        self._second = present.second
        self._tally = present.tally(self._series)
        self._tally.started += 1
        self._sent = False
        self._cached_tokens = 0
        self._owed = 0.0

    def sent(self, now: float) -> None:
        if not self._sent:
            self._sent = True
            self._now().queue_wait.add(now - self._arrived_at)

    def charged(self, service: float) -> None:
        """Until its first token a charge can be given back, and counts never fall."""
        self._owed += service
        if self._first_s is not None:
            self._settle()

    def first_token(self, latency_s: float, cached_tokens: int) -> None:
        self._first_s = latency_s
        tally = self._now()
        tally.prompt_tokens += self._num_prompt
        tally.cached_tokens += cached_tokens
        tally.first_token.add(latency_s)
        self._cached_tokens = cached_tokens
        self._settle()

    def tokens(self, number: int, before: int, at: float) -> None:
        tally, present = self._now(), self._present
        tally.output_tokens += number
        late_s = at - self._arrived_at - present.first_token_s
        for index in range(before, before + number):
            tally.on_time += late_s <= index * present.per_token_s

    def next_tokens(self, number: int, elapsed_s: float) -> None:
        self._now().inter_token.add(elapsed_s / number, number)

    def end(self, outcome: Outcome, now: float, lengths: Sequence[int]) -> None:
        self._settle()
        tally, first_s = self._now(), self._first_s
        setattr(tally, outcome.value, getattr(tally, outcome.value) + 1)
        if outcome is Outcome.FINISHED and first_s is not None:
            duration_s, longest = now - self._arrived_at, max(lengths)
            tally.duration.add(duration_s)
            tally.met += self._met(first_s, duration_s, longest)
            computed = self._num_prompt - self._cached_tokens
            tally.slowdown.add(
                self._present.unloaded.slowdown(computed, longest, first_s, duration_s)
            )

    def _met(self, first_s: float, duration_s: float, longest: int) -> bool:
        """Both targets; the choices come at the same time, so the longest one's pace counts."""
        present = self._present
        paced = longest <= 1 or (duration_s - first_s) / (longest - 1) <= present.per_token_s
        return paced and first_s <= present.first_token_s

    def _settle(self) -> None:
        if self._owed > 0.0:
            self._now().service += self._owed
            self._owed = 0.0

    def _now(self) -> Tally:
        """The series' tally of the present second."""
        present = self._present
        if self._second != present.second:
            self._second = present.second
            self._tally = present.tally(self._series)
        return self._tally
