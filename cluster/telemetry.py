"""What routers tell the Hub of their requests: series of counts and latencies, second by second.

Owns the types that travel, and what a series is. Plain values that any message can carry; who
counts is ``router.recorder``, who adds up over time ``cluster.windows``, and what it comes to
``cluster.figures``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.sketch import Sketch

__all__ = [
    *("OTHERS", "Bucket", "Failure", "History", "ReplicaState", "Reply", "Report", "Series"),
    *("Tally", "length_class"),
]

OTHERS = "(others)"
"""In place of the tenants that are too many to be told apart."""

_LENGTHS = (128, 512, 2048, 8192)


def length_class(prompt_tokens: int) -> str:
    """Prompts that are about as long: ``≤128``, ``≤512``, ``≤2048``, ``≤8192`` or ``>8192``."""
    for most in _LENGTHS:
        if prompt_tokens <= most:
            return f"≤{most}"
    return f">{_LENGTHS[-1]}"


class Series(NamedTuple):
    """Requests that are counted together; ``priority`` is the class's name in small letters."""

    tenant: str
    priority: str
    length: str


@dataclass(slots=True)
class Tally:
    """What became of a series' requests in some time; each counts when it happens.

    Attributes:
        started: and every one of them ends as exactly one of the next four.
        choices: of those that started, all together.
        met: finished ones that kept both latency targets.
        prompt_tokens, cached_tokens: of requests whose first token came; the latter from the cache.
        output_tokens: that came; ``on_time``: those of them that came by arrival + TTFT target +
            i × TPOT target.
        service: charged, in the units of ``cluster.fairness``.
        backlogged_s: time in which the tenant had something waiting in the router; counted once, in
            whichever of the tenant's series.
        spent_s: from start to end, of all that ended; ``placed_s``: of finished ones, from when
            they were sent to a replica.
        first_token, queue_wait, duration: seconds; of requests whose first token came, that were
            sent to a replica, that finished.
        inter_token: seconds between tokens of a choice, each token counted.
        slowdown: latency of finished requests over what it would be with nobody else there.
    """

    started: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    choices: int = 0
    met: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    on_time: int = 0
    service: float = 0.0
    backlogged_s: float = 0.0
    spent_s: float = 0.0
    placed_s: float = 0.0
    first_token: Sketch = field(default_factory=Sketch)
    queue_wait: Sketch = field(default_factory=Sketch)
    duration: Sketch = field(default_factory=Sketch)
    inter_token: Sketch = field(default_factory=Sketch)
    slowdown: Sketch = field(default_factory=Sketch)

    @property
    def ended(self) -> int:
        return self.finished + self.cancelled + self.rejected + self.failed

    def merge(self, other: Tally) -> None:
        """Add the other's, which stays as it is."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _SKETCHES:
            theirs: Sketch = getattr(other, name)
            if theirs.count:
                getattr(self, name).merge(theirs)


_SKETCHES = tuple(each.name for each in fields(Tally) if each.default_factory is Sketch)
_COUNTS = tuple(each.name for each in fields(Tally) if each.name not in _SKETCHES)


Bucket = dict[Series, Tally]
"""Some time's tallies."""


class History(NamedTuple):
    """Tallies after a second, as a ``Report`` carries them; no two buckets overlap."""

    after: int
    seconds: dict[int, Bucket]
    tens: dict[int, Bucket]
    minutes: dict[int, Bucket]


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that was turned away or broke.

    Attributes:
        at: second of the wall clock.
        reason: the error's code.
        request_id: what its client knows it by, cut short if it is long.
        replica_id: where it was last sent; "" if nowhere.
        rejected: nothing of it was begun.
    """

    at: int
    tenant: str
    reason: str
    request_id: str
    replica_id: str
    rejected: bool


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as one router sees it.

    Attributes:
        load: the newest.
        age_s: of the load report, None while there is none.
        live: requests can be sent to it.
        seats: sequences that run at once at the most; None where that is not known.
        open_sequences: that the router has there, by its own count; None where it has none.
    """

    load: LoadReport | None
    age_s: float | None
    live: bool
    seats: int | None = None
    open_sequences: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One router's word to the Hub, once a second.

    Attributes:
        router_id: of the process, so another one after a restart.
        model: that it serves.
        seconds: tallies by whole second of the wall clock, ascending: those that the Hub has not
            acknowledged, and for a Hub that knows nothing all that the router still has.
        tens, minutes: for a Hub that knows nothing: tallies by the first second of each ten seconds
            and of each minute that ``seconds`` do not reach back to.
        totals: since the router started, by series; what was counted is never taken back.
        weights: of the tenants.
        queued, oldest_s: requests of each tenant that wait, and the age of the oldest.
        replicas: by id.
        after: the last second that the Hub has acknowledged, on which ``seconds``, ``tens`` and
            ``minutes`` follow; -1 if they are all there is.
        open: requests that have started and not ended, counted by themselves; None if they are not.
        open_s: what ``open`` adds up to over time, in request-seconds since the router started.
        open_age_s: since their start, of all that are open together; None if that is not known.
        places: tallies by replica, in series that have its id for a tenant and nothing else; here
            each request counts as started wherever it was sent, as failed where it was lost, and
            its end where it was last.
        failures: the newest ones, those that the Hub has not acknowledged, oldest first.
        reasons: how many failed or were turned away since the router started, by the error's code.
        guard_version: of the Guard's state that the router obeys; 0 for none.
        guard: that state, told to a Hub that knows nothing.
    """

    router_id: str
    model: str
    seconds: dict[int, Bucket]
    tens: dict[int, Bucket]
    minutes: dict[int, Bucket]
    totals: Bucket
    weights: dict[str, float]
    queued: dict[str, int]
    oldest_s: dict[str, float]
    replicas: dict[str, ReplicaState]
    after: int = -1
    open: int | None = None
    open_s: float = 0.0
    open_age_s: float | None = None
    places: History = field(default_factory=lambda: History(-1, {}, {}, {}))
    failures: tuple[Failure, ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    guard_version: int = 0
    guard: GuardState | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The Hub's word on a report.

    Attributes:
        acknowledged: the second after which the next report goes on; -1: that says everything.
        guard: the Guard's state, where the router has an older one; else None.
    """

    acknowledged: int
    guard: GuardState | None = None
