"""What is noted of one request while it runs.

Owns where each thing that happens to a request is counted: once, in the router's metrics and in the
tally of its series for the present second. It reads no clock, and which second it is is decided
by ``recorder``. A token costs a few additions, and a turn of its reader one entry in a sketch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.cluster.protocol import Request
from chairlift.cluster.telemetry import Bucket, Failure, Series, Tally, length_class
from chairlift.router.metrics import Outcome, RequestEnd, RouterMetrics
from chairlift.router.unloaded import Unloaded

__all__ = ["Notes", "Present", "Record", "series_of"]

MAX_FAILURES = 16
"""Of the newest ones that are kept; and as many of those that were turned away, who can be so many
that they would hide the others."""

MAX_ID = 64
"""Characters of a request's name that are kept: clients make them up."""


def series_of(request: Request) -> Series:
    """The series that a request is counted in."""
    return Series(request.tenant, request.priority.name.lower(), length_class(len(request.prompt)))


@dataclass(slots=True)
class Present:
    """The present second.

    Attributes:
        first_token_s, per_token_s: the latency targets.
        second: of the wall clock.
        bucket: what has happened in it so far; ``places``: by replica.
        open: requests that have started and not ended; ``arrivals_s``: when each of them came, by
            the router's clock, all together.
        failed, rejected: the newest ones; ``reasons``: of all since the start.
    """

    first_token_s: float
    per_token_s: float
    second: int
    bucket: Bucket = field(default_factory=dict)
    places: Bucket = field(default_factory=dict)
    open: int = 0
    arrivals_s: float = 0.0
    failed: deque[Failure] = field(default_factory=lambda: deque(maxlen=MAX_FAILURES))
    rejected: deque[Failure] = field(default_factory=lambda: deque(maxlen=MAX_FAILURES))
    reasons: Counter[str] = field(default_factory=Counter)
    unloaded: Unloaded = field(default_factory=Unloaded)

    def tally(self, series: Series) -> Tally:
        tally = self.bucket.get(series)
        if tally is None:
            tally = self.bucket[series] = Tally()
        return tally

    def place(self, replica_id: str) -> Tally:
        series = Series(replica_id, "", "")
        tally = self.places.get(series)
        if tally is None:
            tally = self.places[series] = Tally()
        return tally

    def open_age_s(self, now: float) -> float:
        """Of all that are open together; ``now``: the router's clock."""
        return self.open * now - self.arrivals_s


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

    def sent(self, now: float, replica_id: str) -> None:
        """It goes to a replica; not the first time, if it comes back."""
        if self._notes is not None:
            self._notes.sent(now, replica_id)

    def lost(self, replica_id: str) -> None:
        """A replica has lost it, or some of its choices."""
        if self._notes is not None:
            self._notes.lost(replica_id)

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
                prompt_tokens=len(self.request.prompt),
            )
        )
        if self._notes is not None:
            self._notes.end(outcome, label, now, lengths)


class Notes:
    """What is noted of one request for its series; told what its ``Record`` is told."""

    __slots__ = (
        *("_arrived_at", "_cached_tokens", "_first_s", "_num_prompt", "_owed", "_place"),
        *("_lost", "_present", "_request_id", "_second", "_sent_at", "_series", "_tally"),
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
        self._tally.choices += request.n
        present.open += 1
        present.arrivals_s += now
        self._request_id = request.id[:MAX_ID]
        self._sent_at: float | None = None
        self._place = ""
        self._lost = False
        self._cached_tokens = 0
        self._owed = 0.0

    def sent(self, now: float, replica_id: str) -> None:
        if self._sent_at is None:
            self._sent_at = now
            self._now().queue_wait.add(now - self._arrived_at)
        self._place, self._lost = replica_id, False
        self._present.place(replica_id).started += 1

    def lost(self, replica_id: str) -> None:
        self._present.place(replica_id).failed += 1
        self._lost |= self._place == replica_id

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
        if self._place:
            self._present.place(self._place).first_token.add(latency_s)
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

    def end(self, outcome: Outcome, label: str, now: float, lengths: Sequence[int]) -> None:
        self._settle()
        tally, present, duration_s = self._now(), self._present, now - self._arrived_at
        tally.spent_s += duration_s
        _count(tally, outcome)
        if self._place and not self._lost:
            _count(present.place(self._place), outcome)
        self._close()
        if outcome is Outcome.FAILED:
            self._fail(label, present.failed)
        elif outcome is Outcome.REJECTED:
            self._fail(label, present.rejected)
        first_s = self._first_s
        if outcome is Outcome.FINISHED and first_s is not None:
            longest = max(lengths)
            tally.duration.add(duration_s)
            tally.met += self._met(first_s, duration_s, longest)
            tally.placed_s += now - (self._arrived_at if self._sent_at is None else self._sent_at)
            computed = self._num_prompt - self._cached_tokens
            tally.slowdown.add(present.unloaded.slowdown(computed, longest, first_s, duration_s))

    def _fail(self, reason: str, among: deque[Failure]) -> None:
        present = self._present
        present.reasons[reason] += 1
        rejected = among is present.rejected
        failure = Failure(
            present.second, self._series.tenant, reason, self._request_id, self._place, rejected
        )
        among.append(failure)

    def _close(self) -> None:
        present = self._present
        present.open -= 1
        # Where none is open, nothing is left of what rounding has added up.
        present.arrivals_s = present.arrivals_s - self._arrived_at if present.open else 0.0

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


def _count(tally: Tally, outcome: Outcome) -> None:
    setattr(tally, outcome.value, getattr(tally, outcome.value) + 1)
