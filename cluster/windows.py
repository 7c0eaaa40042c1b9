"""What became of requests in the last seconds, minutes and the last hour at all routers together.

Owns what the Hub makes of reports: which routers are there, what they said last, and what they and
those that have gone came to. Time at one sender is ``cluster.history``'s, what tallies come to
``cluster.figures``'s. Pure: times are passed in, as seconds of the wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from chairlift.cluster.history import MOST_TENANTS, Windows, add, bounded, merge
from chairlift.cluster.telemetry import OTHERS, Bucket, Failure, History, Report, Series, Tally

__all__ = ["SPANS", "Flow", "Fold", "Window", "known_s"]

SPANS = {"10s": 10, "1m": 60, "5m": 300, "1h": 3600}
"""The windows, in seconds."""

_HOLD = {10: 1, 60: 1, 300: 2, 3600: 10}
"""For how many seconds a window is not computed anew: the long ones cost, and hardly change."""

LAG_S = 1
"""A second that has just ended has yet to be told by the routers."""

BEHIND_S = 3
"""A router that is so many seconds behind the others is not waited for."""

MAX_DEPARTED = 8
"""Routers that have gone and whose account is kept apart, should they come back."""

MAX_REPLICAS = 1024
"""Told apart."""

MAX_FAILURES = 32
"""Of the newest ones that are kept; and as many of those that were turned away, who can be so many
that they would hide the others."""


class Window(NamedTuple):
    """The tallies of all routers in some time.

    Attributes:
        span_s: its length; a little less than asked for where the resolution is coarse.
        bucket: the tallies; not to be changed.
        backlogged_s: how long each tenant had something waiting, at the router where it waited
            longest; so it waited as long as that in the cluster, or longer.
        places: by replica, as ``Report.places`` counts them.
        models: by model, where there are several; what routers did that have long gone is in none.
    """

    span_s: int
    bucket: Bucket
    backlogged_s: Mapping[str, float]
    places: Mapping[str, Tally] = MappingProxyType({})
    models: Mapping[str, Tally] = MappingProxyType({})


class Flow(NamedTuple):
    """What one router says of its requests at the end of one second, each counted by itself.

    Attributes:
        open: requests that had not ended; ``unended``: the same by its totals.
        open_s, open_age_s: as the report has them.
        spent_s: from start to end, of all that ended, by its totals.
    """

    open: int | None
    unended: int
    open_s: float
    open_age_s: float | None
    spent_s: float


@dataclass(frozen=True, slots=True)
class _Account:
    """One router's; ``report`` says what is now, without the tallies."""

    windows: Windows
    places: Windows
    totals: Bucket
    flow: Flow
    report: Report
    heard_at: float


@dataclass(slots=True)
class _Departed:
    """What routers came to that have long gone."""

    windows: Windows
    places: Windows
    totals: Bucket = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def absorb(self, account: _Account, most: int) -> None:
        self.windows.absorb(account.windows)
        self.places.absorb(account.places)
        self.totals = bounded(merge([self.totals, account.totals]), most)
        self.reasons.update(account.report.reasons)


class Fold:
    """The Hub's: what all routers said.

    A router that is not heard of for ``expire_s`` has departed: what it has now does not count any
    more, what its windows and its totals have does, for as long as the Hub itself lives.
    """

    def __init__(self, expire_s: float = 10.0, most: int = MOST_TENANTS) -> None:
        self._expire_s = expire_s
        self._most = most
        self._accounts: dict[str, _Account] = {}  # who was heard of longest ago comes first
        self._departed = _Departed(Windows(most), Windows(MAX_REPLICAS))
        self._held: dict[int, tuple[int, Window]] = {}
        self.failures: list[Failure] = []
        """The newest ones, oldest first."""

    def put(self, report: Report, now: float) -> int:
        """Take in a router's report.

        Reports may be lost, come twice or late: one that has counted less than is known is of use
        for its windows only.

        Returns:
            The last second that is known of this router, after which the next report is to go on;
            -1: that is to say all there is.
        """
        known = self._accounts.pop(report.router_id, None)
        if known is None:
            windows, places = Windows(self._most), Windows(MAX_REPLICAS)
            known = _Account(windows, places, {}, _flow(report), report, now)
            self._held.clear()
        if report.after <= known.windows.last:
            new = [each for each in report.failures if each.at > known.windows.last]
            self.failures = _newest([*self.failures, *new])
            known.windows.load(report)
            known.places.load(report.places)
        totals, flow, newest = known.totals, known.flow, known.report
        if _progress(report.totals) >= _progress(totals):
            totals, flow = bounded(report.totals, self._most), _flow(report)
            newest = _now_only(report, known.windows.tenants(), self._most)
        self._accounts[report.router_id] = replace(
            known, totals=totals, flow=flow, report=newest, heard_at=now
        )
        self._merge_departed(now)
        return known.windows.last

    def window(self, span_s: int, now: float) -> Window:
        """All routers' last so many seconds (one of ``SPANS``), but for ``LAG_S``."""
        end = int(now) - LAG_S
        held = self._held.get(span_s)
        if held is not None and held[0] <= end < held[0] + _HOLD[span_s]:
            return held[1]
        window = self.over(end, span_s)
        self._held[span_s] = end, window
        return window

    def over(self, end: int, span_s: int, width: int = 0) -> Window:
        """All routers' so many seconds before ``end``; ``width``: of ``Windows.since_when``."""
        bucket: Bucket = {}
        backlogged: dict[str, float] = {}
        models: dict[str, Tally] = {}
        for model, windows in self._senders():
            one = windows.over(end, span_s, width)
            for tenant, waited_s in _backlogged_s(one).items():
                backlogged[tenant] = max(waited_s, backlogged.get(tenant, 0.0))
            for series, tally in one.items():
                add(bucket, series, tally)
                if model:
                    models.setdefault(model, Tally()).merge(tally)
        places = merge(
            each.over(end, span_s, width)
            for each in [self._departed.places, *(one.places for one in self._accounts.values())]
        )
        return Window(
            end - Windows.since_when(end, span_s, width),
            bounded(bucket, self._most),
            backlogged,
            {series.tenant: tally for series, tally in places.items()},
            models,
        )

    def told(self, now: float) -> int:
        """The first second that some router has yet to tell, of those that keep up."""
        lasts = [
            each.windows.last
            for each in self._accounts.values()
            if each.windows.last >= 0 and not self._has_departed(each, now)
        ]
        newest = max(lasts, default=int(now) - LAG_S - 1)
        return min((last for last in lasts if last > newest - BEHIND_S), default=newest) + 1

    def tallies(self, end: int, span_s: int, width: int = 1) -> Iterator[tuple[Series, Tally]]:
        """Of all routers' so many seconds before ``end``, not added up."""
        for _, windows in self._senders():
            for bucket in windows.buckets(end, span_s, width):
                yield from bucket.items()

    def totals(self) -> Bucket:
        """Since each router started, whether it is still there or not."""
        accounts = [each.totals for each in self._accounts.values()]
        return bounded(merge([self._departed.totals, *accounts]), self._most)

    def reasons(self) -> Counter[str]:
        """How many requests failed or were turned away since then, by the error's code."""
        counted = Counter(self._departed.reasons)
        for account in self._accounts.values():
            counted.update(account.report.reasons)
        return counted

    def lost(self, now: float) -> int:
        """Requests that had not ended when their router departed."""
        departed = [
            each.totals for each in self._accounts.values() if self._has_departed(each, now)
        ]
        return sum(_unended(totals) for totals in [self._departed.totals, *departed])

    def present(self, now: float) -> list[tuple[Report, float]]:
        """What routers that are there said last, without tallies, and how many seconds ago."""
        return [
            (each.report, max(0.0, now - each.heard_at))
            for each in self._accounts.values()
            if not self._has_departed(each, now)
        ]

    def flows(self, now: float) -> dict[str, Flow]:
        """Of routers that are there."""
        return {
            name: each.flow
            for name, each in self._accounts.items()
            if not self._has_departed(each, now)
        }

    def weights(self) -> dict[str, float]:
        """Of tenants that are told apart, as the router heard of last knows them."""
        known: dict[str, float] = {}
        for account in self._accounts.values():
            known |= account.report.weights
        return known

    def _senders(self) -> Iterator[tuple[str, Windows]]:
        """All that ever were; with the model where there are several."""
        several = len({each.report.model for each in self._accounts.values()}) > 1
        yield "", self._departed.windows
        for account in self._accounts.values():
            yield account.report.model if several else "", account.windows

    def _merge_departed(self, now: float) -> None:
        departed = [name for name, each in self._accounts.items() if self._has_departed(each, now)]
        for name in departed[: max(0, len(departed) - MAX_DEPARTED)]:
            self._departed.absorb(self._accounts.pop(name), self._most)

    def _has_departed(self, account: _Account, now: float) -> bool:
        return now - account.heard_at > self._expire_s


def known_s(fold: Fold, end: int) -> int:
    """For how many seconds before ``end`` something is known, to the minute."""
    firsts = [windows.first for _, windows in fold._senders()]
    return max((end - first for first in firsts if first is not None), default=0)


def _now_only(report: Report, tenants: set[str], most: int) -> Report:
    """Without what is kept elsewhere; only these tenants and those that have most are named."""
    queued = report.queued
    if len(queued) > most:
        apart = sorted(queued, key=lambda tenant: (-queued[tenant], tenant))[:most]
        rest = queued.keys() - apart
        queued = {tenant: queued[tenant] for tenant in apart}
        queued[OTHERS] = sum(report.queued[tenant] for tenant in rest)
    oldest: dict[str, float] = {}
    for tenant, age_s in report.oldest_s.items():
        name = tenant if tenant in queued else OTHERS
        oldest[name] = max(age_s, oldest.get(name, 0.0))
    named = tenants | queued.keys()
    return replace(
        report,
        seconds={},
        tens={},
        minutes={},
        totals={},
        weights={name: each for name, each in report.weights.items() if name in named},
        queued=queued,
        oldest_s=oldest,
        after=-1,
        places=History(-1, {}, {}, {}),
        failures=(),
        guard=None,
    )


def _newest(failures: list[Failure]) -> list[Failure]:
    in_order = sorted(failures, key=lambda each: each.at)
    failed = [each for each in in_order if not each.rejected][-MAX_FAILURES:]
    rejected = [each for each in in_order if each.rejected][-MAX_FAILURES:]
    return sorted([*failed, *rejected], key=lambda each: each.at)


def _flow(report: Report) -> Flow:
    return Flow(
        open=report.open,
        unended=_unended(report.totals),
        open_s=report.open_s,
        open_age_s=report.open_age_s,
        spent_s=sum(tally.spent_s for tally in report.totals.values()),
    )


def _unended(totals: Bucket) -> int:
    return sum(tally.started - tally.ended for tally in totals.values())


def _progress(totals: Bucket) -> int:
    """Grows with all that happens to requests."""
    return sum(tally.started + tally.ended + tally.output_tokens for tally in totals.values())


def _backlogged_s(bucket: Bucket) -> dict[str, float]:
    waited: dict[str, float] = {}
    for series, tally in bucket.items():
        waited[series.tenant] = waited.get(series.tenant, 0.0) + tally.backlogged_s
    return waited
