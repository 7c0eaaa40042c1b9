"""Which replica gets the next request, and whether any has room for it at all.

Owns the rule, over snapshots; it knows no streams, reads no clock, and draws from the random
source that it is given.

    filter: ready, not draining, long enough, has credits or a place in its line
      → tier: a free seat for each choice, a free seat, one after the next step, a place in line;
        unknown load last of all
        → score: the policy's
          → pick

What a replica may be given is bounded, so that requests wait here, where it can still be chosen
who is next, and not there. *Credits* are for free seats; R routers that see the same report spend
no more than there are:

    ├──────────────────── seats ────────────────────┤
    ├─ running, waiting ─┼────────── free ──────────┤
                           each router: its share, less what it has sent since

Where no seat is free, each tenant may have a few sequences in a replica's line, its *look-ahead*,
so that a seat is taken the moment that it is free, and by whom fairness says: a tenant that was
served little overtakes others there, instead of waiting here until their line has moved.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from chairlift.cluster.protocol import LoadReport, Priority, ReplicaInfo
from chairlift.router.sent import Unstarted

__all__ = [
    "Need",
    "Placement",
    "ReplicaView",
    "credits",
    "fits_nowhere",
    "free_credits",
    "has_place_in_line",
    "max_sequence_tokens",
    "retry_after_s",
]

SEQUENCE_TOKENS = 128
"""What a sequence counts for besides its uncomputed tokens: the output that it is still to have,
which nobody knows yet."""

RATE_SPREAD = 2.0
"""How far a replica's measured rate is believed to differ from the mean: besides the hardware, it
shows what happened to be computed."""

CLOSE = 1.2
"""A second-best that costs no more than so many times the best has its chance, for the snapshots
are of a moment ago and other routers see the same ones."""

SOME = 16
"""Of more than twice as many replicas, so many are drawn and looked at first: the least loaded of
so many is nearly the least loaded of all, and costs the same however many there are."""

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a router knows of a replica at one moment.

    Attributes:
        replica_id: the name by which the replica is a member.
        ready: it can be sent requests now.
        info: what it said of itself when its stream opened; None before the first time.
        load: its latest report; None when it is not known.
        load_age_s: seconds since the report arrived.
        sent_sequences: sequences that this router has sent and no report covers yet.
        sent_tokens: the prompt tokens of those, counted once per sequence.
        tokens_per_s: measured speed, prompt and output tokens together; None when not known.
        open_sequences: that this router has there, whether reported or not.
        full: it refused a request for want of room, and has reported nothing since.
        unstarted: what this router has there without a token so far, by tenant and class.
        max_seats: that are given away there at the most, however many there are; None: all.
    """

    replica_id: str
    ready: bool
    info: ReplicaInfo | None = None
    load: LoadReport | None = None
    load_age_s: float | None = None
    sent_sequences: int = 0
    sent_tokens: int = 0
    tokens_per_s: float | None = None
    open_sequences: int = 0
    full: bool = False
    unstarted: Unstarted = field(default_factory=Unstarted, compare=False)
    max_seats: int | None = None

    @property
    def seats(self) -> int:
        """That are given away there; 0 while that is not known."""
        seats = 0 if self.info is None else self.info.max_sequences
        return seats if self.max_seats is None else min(seats, self.max_seats)

    @property
    def backlog(self) -> int:
        """Tokens that stand before a new request, by report and by what was sent since.

        Seats count as tokens too, so that of two replicas without a queue the emptier one wins.
        """
        load = self.load or LoadReport()
        sequences = load.running + load.waiting + self.sent_sequences
        return load.waiting_tokens + self.sent_tokens + SEQUENCE_TOKENS * sequences

    @property
    def free_seats(self) -> int:
        """As far as known; negative when sequences wait for one."""
        load = self.load or LoadReport()
        return self.seats - load.running - load.waiting - self.sent_sequences

    def is_fresh(self, stale_after_s: float) -> bool:
        """Whether the report says something: an old one is unknown, not idle."""
        return self.load_age_s is not None and self.load_age_s <= stale_after_s


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes.

    Attributes:
        num_tokens: to be computed before it decodes, if nothing of it is cached.
        n: sequences.
        max_total: prompt plus output at most.
        names: short names of the prompt's full blocks.
        tenant, priority: whose it is, and of which class.
        under_way: it ran elsewhere before.
    """

    num_tokens: int
    n: int
    max_total: int
    names: tuple[int, ...] = ()
    tenant: str = "anonymous"
    priority: Priority = Priority.STANDARD
    under_way: bool = False


def credits(view: ReplicaView, stale_after_s: float) -> int:
    """Free seats of a replica that this router may fill now.

    A free seat is offered by each router, rather than by none. Where the load is not known, a
    router goes by what it has there itself, up to its share of the seats, and at least to one:
    service must not stop because reports do.
    """
    load = view.load or LoadReport()
    if not view.ready or view.full or load.draining or view.info is None:
        return 0
    seats, routers = view.seats, max(1, load.routers)
    if not view.is_fresh(stale_after_s):
        return max(0, max(1, -(-seats // routers)) - view.open_sequences)
    share = _share(seats - load.running - load.waiting, routers)
    return max(0, min(share - view.sent_sequences, seats - view.open_sequences))


def free_credits(views: Sequence[ReplicaView], stale_after_s: float, enough: int) -> int:
    """Those of all; no more are looked for where there are ``enough``."""
    free = 0
    for view in views:
        if free >= enough:
            break
        free += credits(view, stale_after_s)
    return free


def has_place_in_line(view: ReplicaView, need: Need, look_ahead: int, stale_after_s: float) -> bool:
    """Whether a request may wait there for a seat: few of its tenant do, and not too many in all.

    What goes on after its replica was lost waits wherever there is a line, for somebody reads it.
    """
    line = _line(view, look_ahead, stale_after_s)
    if line is None:
        return False
    few = line < look_ahead or view.unstarted.of(need.tenant, need.priority) < look_ahead
    return few or need.under_way


class Placement:
    """The rule, with the little that policies remember.

    Attributes:
        affinity: replicas that hold a prompt's prefix are preferred, if the policy does so.
    """

    def __init__(
        self, policy: str, *, look_ahead: int, stale_after_s: float, random: random.Random
    ) -> None:
        """Start with nothing remembered.

        Args:
            policy: ``prefix-aware``, ``least-loaded``, ``power-of-two`` or ``round-robin``.
            look_ahead: sequences of one tenant that wait for a seat in a replica's line.
            stale_after_s: age after which a load report says nothing.
            random: draws among replicas that are about as good.
        """
        self._choose = {
            "prefix-aware": self._prefix_aware,
            "least-loaded": self._least_loaded,
            "power-of-two": self._power_of_two,
            "round-robin": self._round_robin,
        }[policy]
        self.affinity = True
        self._look_ahead = look_ahead
        self._stale_after_s = stale_after_s
        self._random = random
        self._last = ""
        self._open: dict[str, tuple[ReplicaView, bool]] = {}

    def pick(
        self, views: Sequence[ReplicaView], need: Need, hits: Callable[[str], int]
    ) -> str | None:
        """The replica for a request; None while none that could hold it has room.

        Args:
            views: of all replicas, in any order.
            need: what the request takes.
            hits: replica id → leading ones of ``need.names`` that are cached there.
        """
        views = sorted(views, key=lambda view: view.replica_id)
        if len(views) > 2 * SOME and self._choose != self._round_robin:
            some = self._some(views, hits)
            soonest, best = self._soonest(some, need)
            if soonest == 0:
                return self._choose(best, need, hits).replica_id
        _, best = self._soonest(views, need)
        return self._choose(best, need, hits).replica_id if best else None

    def has_room(self, view: ReplicaView, need: Need) -> bool:
        """Whether the replica may be given the request now."""
        if view.info is None or view.info.max_sequence_tokens < need.max_total:
            return False
        has_seat = credits(view, self._stale_after_s) > 0
        return has_seat or has_place_in_line(view, need, self._look_ahead, self._stale_after_s)

    def open_to_some(self, views: Sequence[ReplicaView]) -> list[ReplicaView]:
        """Those that can be given something, if it is the right thing.

        What was found of a view is kept while the same one is handed in.
        """
        before, self._open = self._open, {}
        for view in views:
            known = before.get(view.replica_id)
            if known is None or known[0] is not view:
                known = view, self._is_open(view)
            self._open[view.replica_id] = known
        return [view for view, is_open in self._open.values() if is_open]

    def _is_open(self, view: ReplicaView) -> bool:
        has_line = _line(view, self._look_ahead, self._stale_after_s) is not None
        return has_line or credits(view, self._stale_after_s) > 0

    def _some(self, views: Sequence[ReplicaView], hits: Callable[[str], int]) -> list[ReplicaView]:
        """Drawn ones, and those that have most of the prefix."""
        drawn = self._random.sample(range(len(views)), SOME)
        if self._choose == self._prefix_aware and self.affinity:
            found = ((hits(view.replica_id), index) for index, view in enumerate(views))
            most = nlargest(SOME // 2, (each for each in found if each[0]))
            drawn += [index for _, index in most]
        return [views[index] for index in sorted(set(drawn))]

    def _soonest(self, views: Sequence[ReplicaView], need: Need) -> tuple[float, list[ReplicaView]]:
        """Those with room in the best tier, and which that is."""
        able = [view for view in views if self.has_room(view, need)]
        tiers = [self._tier(view, need) for view in able]
        soonest = min(tiers, default=math.inf)
        best = [view for view, tier in zip(able, tiers, strict=True) if tier == soonest]
        return soonest, best

    def _tier(self, view: ReplicaView, need: Need) -> float:
        """How soon a seat is to be had there, roughly; lower is sooner.

        Of seats that are about to be free, the more the better: others may be after them too.
        """
        if not view.is_fresh(self._stale_after_s):
            return 4
        free = view.free_seats
        if free > 0:
            return 0 if free >= need.n else 1
        freeing = 0 if view.load is None else view.load.freeing
        left = freeing - view.unstarted.of(need.tenant, need.priority)
        return 2 + 1 / (1 + left) if left > 0 else 3

    def _round_robin(
        self, views: Sequence[ReplicaView], need: Need, hits: Callable[[str], int]
    ) -> ReplicaView:
        later = (view for view in views if view.replica_id > self._last)
        chosen = next(later, views[0])
        self._last = chosen.replica_id
        return chosen

    def _least_loaded(
        self, views: Sequence[ReplicaView], need: Need, hits: Callable[[str], int]
    ) -> ReplicaView:
        return min(self._shuffled(views), key=self._load)

    def _power_of_two(
        self, views: Sequence[ReplicaView], need: Need, hits: Callable[[str], int]
    ) -> ReplicaView:
        return min(self._shuffled(views)[:2], key=self._load)

    def _prefix_aware(
        self, views: Sequence[ReplicaView], need: Need, hits: Callable[[str], int]
    ) -> ReplicaView:
        if not self.affinity:
            return self._least_loaded(views, need, hits)
        costs = {
            view.replica_id: self._tokens(view, need, hits(view.replica_id)) / rate
            for view, rate in zip(views, _rates(views), strict=True)
        }
        ranked = sorted(self._shuffled(views), key=lambda view: costs[view.replica_id])[:2]
        best, second = costs[ranked[0].replica_id], costs[ranked[-1].replica_id]
        if second > CLOSE * best:
            return ranked[0]
        return self._random.choices(ranked, [second, best][: len(ranked)])[0]

    def _tokens(self, view: ReplicaView, need: Need, hits: int) -> float:
        """What stands before the request's first token there, counted in tokens."""
        load, block_size = view.load or LoadReport(), view.info.block_size if view.info else 1
        tokens = self._load(view) + max(1, need.num_tokens - hits * block_size)
        if view.is_fresh(self._stale_after_s) and load.blocks_total:
            free = load.blocks_total - load.blocks_used - _blocks(view.sent_tokens, block_size)
            if _blocks(need.num_tokens, block_size) - hits > free:
                # It waits for others to end, who have about half of their output to come.
                tokens += SEQUENCE_TOKENS * (load.running + 1) // 2
        return tokens

    def _load(self, view: ReplicaView) -> int:
        """An old report says nothing, so there it is what this router has sent itself."""
        if view.is_fresh(self._stale_after_s):
            return view.backlog
        return view.sent_tokens + SEQUENCE_TOKENS * view.open_sequences

    def _shuffled(self, views: Sequence[ReplicaView]) -> list[ReplicaView]:
        return self._random.sample(views, len(views))


def fits_nowhere(views: Sequence[ReplicaView], max_total: int) -> bool:
    """Whether so long a sequence is beyond each of the replicas, of which there are some."""
    limits = [view.info.max_sequence_tokens for view in views if view.ready and view.info]
    return bool(limits) and max_total > max(limits)


def max_sequence_tokens(views: Sequence[ReplicaView]) -> int | None:
    """Prompt plus output that any ready replica can hold; None when none is ready."""
    return min(
        (view.info.max_sequence_tokens for view in views if view.ready and view.info is not None),
        default=None,
    )


def retry_after_s(views: Sequence[ReplicaView], queued_tokens: int) -> float:
    """Seconds until what waits, here and there, is computed at the speed that replicas show."""
    ready = [view for view in views if view.ready]
    if not any(view.tokens_per_s for view in ready):
        return MIN_RETRY_S
    waiting = sum((view.load or LoadReport()).waiting_tokens + view.sent_tokens for view in ready)
    seconds = (queued_tokens + waiting) / sum(_rates(ready))
    return min(max(seconds, MIN_RETRY_S), MAX_RETRY_S)


def _share(free: int, routers: int) -> int:
    """Of the free seats; each router may offer the last one."""
    return max(1, free // routers) if free > 0 else 0


def _line(view: ReplicaView, look_ahead: int, stale_after_s: float) -> int | None:
    """How many wait there for a seat, or will; None where nobody else may."""
    load, info = view.load or LoadReport(), view.info
    if not view.ready or view.full or load.draining or info is None:
        return None
    if not view.is_fresh(stale_after_s):
        return None
    seats, routers = view.seats, max(1, load.routers)
    # What was sent beyond our share of the free seats waits there, or will.
    beyond = view.sent_sequences - _share(seats - load.running - load.waiting, routers)
    line = max(load.waiting + max(0, beyond), view.open_sequences - seats)
    return line if line < seats + look_ahead else None


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def _rates(views: Sequence[ReplicaView]) -> list[float]:
    """Tokens per second of each; the mean of the known where it is not known, 1 if none is."""
    known = [view.tokens_per_s for view in views if view.tokens_per_s]
    mean = sum(known) / len(known) if known else 1.0
    return [
        min(max(view.tokens_per_s or mean, mean / RATE_SPREAD), mean * RATE_SPREAD)
        for view in views
    ]
