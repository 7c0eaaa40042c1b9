"""What became of requests in the last seconds, minutes and the last hour, as one sender counted it.

Owns time at one sender: which second counts in which bucket, what a report must carry so that
nothing is lost or counted twice, and which tenants are told apart so that memory stays bounded.
Sender and Hub both keep it, and agree. Pure: times are passed in, as seconds of the wall clock.

Each second is kept for itself, and is added at once to its ten seconds and to its minute:

    minutes  |··············60··············|··············60··············|   for more than an hour
    tens                          |·10·|·10·|·10·|·10·|·10·|·10·|              for over five minutes
    seconds                                                |||||||||||||||     for over one

Tenants beyond the ``most`` with the highest service are counted together, in each second, each ten
and each minute apart. So whatever is merged, sums over all tenants are exact, and what is told of a
tenant is too little by what it had where others had more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chairlift.cluster.telemetry import OTHERS, Bucket, History, Report, Series, Tally

__all__ = ["KEEP", "MOST_TENANTS", "Windows", "add", "bounded", "merge"]

MOST_TENANTS = 32
"""Tenants that are told apart in a second, ten seconds, a minute, or a window."""

KEEP = {1: 75, 10: 400, 60: 3780}
"""For how long buckets of so many seconds are kept."""

_RESOLUTION = {10: 1, 60: 1, 300: 10, 3600: 60}


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
            add(rest, series._replace(tenant=OTHERS), tally)
    return kept | rest


def add(bucket: Bucket, series: Series, tally: Tally) -> None:
    """Count a tally in a bucket; it stays as it is."""
    mine = bucket.get(series)
    if mine is None:
        mine = bucket[series] = Tally()
    mine.merge(tally)


def merge(buckets: Iterable[Bucket]) -> Bucket:
    """All of them added up; they stay as they are."""
    merged: Bucket = {}
    for bucket in buckets:
        for series, tally in bucket.items():
            add(merged, series, tally)
    return merged


def _floor(second: int, width: int) -> int:
    return second - second % width


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

    def over(self, now: int, span_s: int, width: int = 0) -> Bucket:
        """All from ``since_when`` to before ``now``; it belongs to the caller."""
        return merge(self.buckets(now, span_s, width))

    def buckets(self, now: int, span_s: int, width: int = 0) -> Iterator[Bucket]:
        """The same, not added up; they are not to be changed."""
        first = self.since_when(now, span_s, width)
        for start, bucket in self._levels[width or _RESOLUTION[span_s]].items():
            if first <= start < now:
                yield bucket

    @staticmethod
    def since_when(now: int, span_s: int, width: int = 0) -> int:
        """The first second of a window that ends before ``now``.

        It begins where a bucket of that width does (1, 10 or 60 s), so it may be shorter by less
        than that. Unless one is asked for, windows of 10 s and 60 s are exact, that of 300 s begins
        with whole ten seconds, and that of 3600 s with a whole minute.
        """
        return -_floor(span_s - now, width or _RESOLUTION[span_s])

    @property
    def first(self) -> int | None:
        """Where the oldest minute begins that is there; None without any."""
        return min(self._levels[60], default=None)

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
            add(merged, series, tally)
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
