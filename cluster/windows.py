"""What became of requests in the last seconds, minutes and the last hour, at one sender and at all.

Owns time: which second counts in which window, what a report must carry so that nothing is lost or
counted twice, and which tenants are told apart so that memory stays bounded. What the tallies come
to is ``cluster.figures``. Pure: times are passed in, as seconds of the wall clock.

Each second is kept for itself, and is added at once to its ten seconds and to its minute:

    minutes  |··············60··············|··············60··············|   for more than an hour
    tens                          |·10·|·10·|·10·|·10·|·10·|·10·|              for over five minutes
    seconds                                                |||||||||||||||     for over one

Tenants beyond the ``most`` with the highest service are counted together, in each second, each ten
and each minute apart. So whatever is merged, sums over all tenants are exact, and what is told of a
tenant is too little by what it had where others had more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chairlift.cluster.telemetry import OTHERS, Bucket, Report, Series, Tally

__all__ = ["MOST_TENANTS", "SPANS", "Fold", "History", "Window", "Windows", "bounded"]

MOST_TENANTS = 32
"""Tenants that are told apart in a second, ten seconds, a minute, or a window."""

SPANS = {"10s": 10, "1m": 60, "5m": 300, "1h": 3600}
"""The windows, in seconds."""

KEEP = {1: 75, 10: 400, 60: 3780}
"""For how long buckets of so many seconds are kept."""

_RESOLUTION = {10: 1, 60: 1, 300: 10, 3600: 60}
_HOLD = {10: 1, 60: 1, 300: 2, 3600: 10}
"""For how many seconds a window is not computed anew: the long ones cost, and hardly change."""

LAG_S = 1
"""A second that has just ended has yet to be told by the routers."""

MAX_DEPARTED = 8
"""Routers that have gone and whose account is kept apart, should they come back."""


def bounded(bucket: Bucket, most: int = MOST_TENANTS) -> Bucket:
    """The tenants with the highest service apart, ties by name, and all others as ``OTHERS``.

    The bucket stays as it is; tallies of those who stay apart are in both.
    """
    service: dict[str, float] = {}
    for series, tally in bucket.items():
        service[series.tenant] = service.get(series.tenant, 0.0) + tally.service
    service.pop(OTHERS, None)
    if len(service) <= most:
        return bucket
    apart = set(sorted(service, key=lambda tenant: (-service[tenant], tenant))[:most])
    kept: Bucket = {}
    rest: Bucket = {}
    for series, tally in bucket.items():
        if series.tenant in apart:
            kept[series] = tally
        else:
            _add(rest, series._replace(tenant=OTHERS), tally)
    return kept | rest


def _add(bucket: Bucket, series: Series, tally: Tally) -> None:
    mine = bucket.get(series)
    if mine is None:
        mine = bucket[series] = Tally()
    mine.merge(tally)


def _merge(buckets: Iterable[Bucket]) -> Bucket:
    merged: Bucket = {}
    for bucket in buckets:
        for series, tally in bucket.items():
            _add(merged, series, tally)
    return merged


def _floor(second: int, width: int) -> int:
    return second - second % width


class History(NamedTuple):
    """Tallies after a second, as a ``Report`` carries them; no two buckets overlap."""

    after: int
    seconds: dict[int, Bucket]
    tens: dict[int, Bucket]
    minutes: dict[int, Bucket]


class Windows:
    """One sender's last hour; the sender and the Hub both keep it, and agree."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._levels: dict[int, dict[int, Bucket]] = {width: {} for width in KEEP}
        self.last = -1
        """The newest second that is there; -1 without any."""

    def add(self, second: int, bucket: Bucket) -> None:
        """Take in a second that has passed; the bucket is given away.

        One that is there already says nothing new, and one that came too late is not counted.
        """
        seconds = self._levels[1]
        if second in seconds or second <= self.last - KEEP[1]:
            return
        seconds[second] = bounded(bucket, self._most)
        self._put(10, second, seconds[second])
        self._put(60, second, seconds[second])
        self._advance(second)

    def over(self, now: int, span_s: int) -> Bucket:
        """All from ``since_when(now, span_s)`` to before ``now``; it belongs to the caller."""
        first = self.since_when(now, span_s)
        return _merge(
            bucket
            for start, bucket in self._levels[_RESOLUTION[span_s]].items()
            if first <= start < now
        )

    @staticmethod
    def since_when(now: int, span_s: int) -> int:
        """The first second of a window that ends before ``now``.

        Windows of 10 s and 60 s are exact. That of 300 s begins with whole ten seconds and that of
        3600 s with a whole minute, so they may be shorter by less than that.
        """
        return -_floor(span_s - now, _RESOLUTION[span_s])

    def since(self, second: int) -> History:
        """What somebody lacks who has all up to this second; -1: who has nothing.

        Who has heard nothing for longer than seconds are kept lacks, in the end, what is between
        that second and the next whole ten seconds, or the next whole minute.
        """
        tens_end = self._reach(1, 10)
        minutes_end = self._reach(10, 60)
        return History(
            second,
            self._between(1, max(second + 1, tens_end), self.last + 1),
            self._between(10, max(second + 1, minutes_end), tens_end),
            self._between(60, second + 1, minutes_end),
        )

    def load(self, history: History | Report) -> None:
        """Take in what is after the last second here; all else is here already."""
        last = self.last
        for start, bucket in sorted(history.minutes.items()):
            if start > last:
                self._put(60, start, bucket)
        for start, bucket in sorted(history.tens.items()):
            if start > last:
                self._put(10, start, bucket)
                self._put(60, start, bucket)
        for second, bucket in sorted(history.seconds.items()):
            if second > last:
                self.add(second, bucket)

    def absorb(self, other: Windows) -> None:
        """Add another sender's, of whom nothing more is to come."""
        for width, level in other._levels.items():
            for start, bucket in level.items():
                self._put(width, start, bucket)
        self._advance(other.last)

    def tenants(self) -> set[str]:
        """All that are told apart somewhere in the last hour."""
        return {series.tenant for bucket in self._levels[60].values() for series in bucket}

    def _put(self, width: int, second: int, bucket: Bucket) -> None:
        level, start = self._levels[width], _floor(second, width)
        merged = level.setdefault(start, {})
        for series, tally in bucket.items():
            _add(merged, series, tally)
        level[start] = bounded(merged, self._most)

    def _advance(self, second: int) -> None:
        self.last = max(self.last, second)
        for width, level in self._levels.items():
            for start in [start for start in level if start <= self.last - KEEP[width]]:
                del level[start]

    def _reach(self, width: int, wider: int) -> int:
        """From where buckets of this width are all kept, at the start of one that is wider."""
        return -_floor(KEEP[width] - 1 - self.last, wider)

    def _between(self, width: int, first: int, end: int) -> dict[int, Bucket]:
        level = self._levels[width]
        return {start: level[start] for start in sorted(level) if first <= start < end}


class Window(NamedTuple):
    """The tallies of all routers in some time.

    Attributes:
        span_s: its length; a little less than asked for where the resolution is coarse.
        bucket: the tallies; not to be changed.
        backlogged_s: how long each tenant had something waiting, at the router where it waited
            longest; so it waited as long as that in the cluster, or longer.
    """

    span_s: int
    bucket: Bucket
    backlogged_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Account:
    """One router's; ``report`` says what is now, without the tallies."""

    windows: Windows
    totals: Bucket
    report: Report
    heard_at: float


class Fold:
    """The Hub's: what all routers said.

    A router that is not heard of for ``expire_s`` has departed: what it has now does not count any
    more, what its windows and its totals have does, for as long as the Hub itself lives.
    """

    def __init__(self, expire_s: float = 10.0, most: int = MOST_TENANTS) -> None:
        self._expire_s = expire_s
        self._most = most
        self._accounts: dict[str, _Account] = {}  # who was heard of longest ago comes first
        self._departed = Windows(most)
        self._departed_totals: Bucket = {}
        self._held: dict[int, tuple[int, Window]] = {}

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
            known = _Account(Windows(self._most), {}, report, now)
            self._held.clear()
        if report.after <= known.windows.last:
            known.windows.load(report)
        totals, newest = known.totals, known.report
        if _progress(report.totals) >= _progress(totals):
            totals = bounded(report.totals, self._most)
            newest = self._without_tallies(report, known.windows)
        self._accounts[report.router_id] = _Account(known.windows, totals, newest, now)
        self._merge_departed(now)
        return known.windows.last

    def window(self, span_s: int, now: float) -> Window:
        """All routers' last so many seconds (one of ``SPANS``), but for ``LAG_S``."""
        end = int(now) - LAG_S
        held = self._held.get(span_s)
        if held is not None and held[0] <= end < held[0] + _HOLD[span_s]:
            return held[1]
        bucket: Bucket = {}
        backlogged: dict[str, float] = {}
        for windows in [self._departed, *(each.windows for each in self._accounts.values())]:
            one = windows.over(end, span_s)
            for tenant, waited_s in _backlogged_s(one).items():
                backlogged[tenant] = max(waited_s, backlogged.get(tenant, 0.0))
            for series, tally in one.items():
                _add(bucket, series, tally)
        window = Window(
            end - Windows.since_when(end, span_s), bounded(bucket, self._most), backlogged
        )
        self._held[span_s] = end, window
        return window

    def totals(self) -> Bucket:
        """Since each router started, whether it is still there or not."""
        accounts = [each.totals for each in self._accounts.values()]
        return bounded(_merge([self._departed_totals, *accounts]), self._most)

    def lost(self, now: float) -> int:
        """Requests that had not ended when their router departed."""
        departed = [
            each.totals for each in self._accounts.values() if self._has_departed(each, now)
        ]
        return sum(
            tally.started - tally.ended
            for totals in [self._departed_totals, *departed]
            for tally in totals.values()
        )

    def present(self, now: float) -> list[tuple[Report, float]]:
        """What routers that are there said last, without tallies, and how many seconds ago."""
        return [
            (each.report, max(0.0, now - each.heard_at))
            for each in self._accounts.values()
            if not self._has_departed(each, now)
        ]

    def weights(self) -> dict[str, float]:
        """Of tenants that are told apart, as the router heard of last knows them."""
        known: dict[str, float] = {}
        for account in self._accounts.values():
            known |= account.report.weights
        return known

    def _without_tallies(self, report: Report, windows: Windows) -> Report:
        queued = report.queued
        if len(queued) > self._most:
            apart = sorted(queued, key=lambda tenant: (-queued[tenant], tenant))[: self._most]
            rest = queued.keys() - apart
            queued = {tenant: queued[tenant] for tenant in apart}
            queued[OTHERS] = sum(report.queued[tenant] for tenant in rest)
        oldest: dict[str, float] = {}
        for tenant, age_s in report.oldest_s.items():
            name = tenant if tenant in queued else OTHERS
            oldest[name] = max(age_s, oldest.get(name, 0.0))
        named = windows.tenants() | queued.keys()
        return Report(
            router_id=report.router_id,
            model=report.model,
            seconds={},
            tens={},
            minutes={},
            totals={},
            weights={name: each for name, each in report.weights.items() if name in named},
            queued=queued,
            oldest_s=oldest,
            replicas=report.replicas,
            open=report.open,
        )

    def _merge_departed(self, now: float) -> None:
        departed = [name for name, each in self._accounts.items() if self._has_departed(each, now)]
        for name in departed[: max(0, len(departed) - MAX_DEPARTED)]:
            account = self._accounts.pop(name)
            self._departed.absorb(account.windows)
            self._departed_totals = bounded(
                _merge([self._departed_totals, account.totals]), self._most
            )

    def _has_departed(self, account: _Account, now: float) -> bool:
        return now - account.heard_at > self._expire_s


def _progress(totals: Bucket) -> int:
    """Grows with all that happens to requests."""
    return sum(tally.started + tally.ended + tally.output_tokens for tally in totals.values())


def _backlogged_s(bucket: Bucket) -> dict[str, float]:
    waited: dict[str, float] = {}
    for series, tally in bucket.items():
        waited[series.tenant] = waited.get(series.tenant, 0.0) + tally.backlogged_s
    return waited
