"""The words of the Guard: its signals, its rungs, what it did, and how it stands.

Owns the types that travel between Hub, routers and whoever looks; who decides is ``guard``, and who
measures ``signals``. Plain frozen values that any message can carry.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.cluster.protocol import Controls

__all__ = [
    "Alarm",
    "GuardState",
    "Mode",
    "Move",
    "MoveKind",
    "Reading",
    "Readings",
    "Rung",
    "Signal",
]


class Signal(enum.StrEnum):
    """What foretells harm, the earliest first; each the worse the higher, but ``STEPS_LEFT``."""

    OFFERED_LOAD = "offered_load"
    """Sequences that what comes would keep in seats, over those that KV cache and seats hold."""
    STEPS_LEFT = "steps_left"
    """Steps until a replica's KV cache is full if nobody ends before."""
    SATURATED_STEPS = "saturated_steps"
    """Share of a replica's steps after which somebody had to wait."""
    SLOW_STEPS = "slow_steps"
    """What a replica's steps take over what they took long before."""
    QUEUE_DELAY = "queue_delay"
    """What stands in the queue, as time to serve it, over the target for first tokens."""
    OLDEST_SLOPE = "oldest_slope"
    """Seconds by which the age of what waits longest grows in each second."""
    KV_USE = "kv_use"
    """Share of a replica's KV cache that is used."""
    RECOMPUTATION = "recomputation"
    """Share of a replica's computed tokens that it had computed before, or of its sequences that
    were preempted; the larger one."""
    UNFAIRNESS = "unfairness"
    """The largest of: service gap over its bound; worst slowdown of a tenant over the median, and
    age of what waits longest, each over its limit."""
    CONTRADICTION = "contradiction"
    """By how much of itself the number of open requests differs from what it should be."""
    BURN_RATE = "burn_rate"
    """How fast the share of requests that may miss their target is used up, over what is borne."""


class Rung(enum.IntEnum):
    """Of the ladder; each keeps in force what the ones below it do."""

    NORMAL = 0
    NO_SPECULATION = 1
    """Nothing is computed twice on the chance that it helps."""
    SMALLER_STEPS = 2
    """Fewer tokens in a step, fewer seats."""
    REFUSE_BEST_EFFORT = 3
    """The lowest class is refused, and tenants are served by weight."""
    DEMOTE_LATE = 4
    """Who cannot be in time any more goes after who can."""
    RESERVE = 5
    """Seats only with blocks for the greatest length, no preference for cached prefixes."""
    CUT_ADMISSION = 6
    """Of each tenant only the share is let in that can be served."""
    STATIC = 7
    """Static batching."""
    PAGE = 8
    """A person is called."""
    ROLL_BACK = 9
    """The last configuration that did well comes back."""
    STOP = 10
    """Nothing is let in; the service ends when what is open has ended."""


class Mode(enum.StrEnum):
    """Whether the Guard acts, only says what it would do, or is not there."""

    ACT = "act"
    SHADOW = "shadow"
    OFF = "off"


class MoveKind(enum.StrEnum):
    """What was done; the last four by a person, the others by software."""

    UP = "up"
    DOWN = "down"
    ADJUST = "adjust"
    """The share that is let in has changed, on the same rung."""
    FREEZE = "freeze"
    """Telemetry contradicts itself, so nothing is decided from it until it does not."""
    THAW = "thaw"
    WAIT = "wait"
    """The next rung needs a person's word."""
    APPROVE = "approve"
    HOLD = "hold"
    RELEASE = "release"
    SET = "set"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signal says now, and of which replica or tenant, if of one."""

    value: float
    where: str = ""


Readings = Mapping[Signal, Reading]
"""Signals that are known; the others are not."""


@dataclass(frozen=True, slots=True)
class Move:
    """Something that the Guard did, or a person did through it.

    Attributes:
        at: seconds of the wall clock.
        version: of the state that it made.
        before, after: the rungs; equal where it is not about them.
        signal, value, threshold, where: why; "" and None where no signal was the reason.
        owner: role that answers for it.
        by: name of the person; "" for software.
        shadow: it was only said, not done.
        what: what it changes, in words.
        calls: the owner is to be called.
    """

    at: float
    version: int
    kind: MoveKind
    before: Rung
    after: Rung
    signal: str = ""
    value: float | None = None
    threshold: float | None = None
    where: str = ""
    owner: str = ""
    by: str = ""
    shadow: bool = False
    what: str = ""
    calls: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    """A signal that was beyond its threshold long enough, and is not over.

    Attributes:
        since: when it became one, in seconds of the wall clock.
        asks: the lowest rung that it asks for; it has climbed where a lower one did not help.
        calm_since: since when the signal is calm; None while it is not.
    """

    since: float
    asks: Rung
    calm_since: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """How the Guard stands; it travels whole, so that a Hub that starts anew goes on from it.

    Attributes:
        version: grows with every move; 0 for a Guard that has never moved.
        rung: that is in force.
        controls: that are in force; their version is this one's.
        admit: share that is let in from ``CUT_ADMISSION`` on.
        at: when it was looked at last, in seconds of the wall clock, as all times here.
        moved_at: when the rung last changed.
        fell_at: when it last went down; None if it has gone up since, or never went down.
        adjusted_at: when ``admit`` last changed.
        relapses: how often in a row it had to go up again soon after it went down.
        raised_by: the signal that was the reason to go up last; None if a person was.
        held_by: person who holds the rung; "" where it moves by itself.
        overrides: fields of ``controls`` that a person has set.
        waiting_for: rung that needs a person's word; None for none.
        frozen: telemetry contradicts itself.
        above_since: of each signal beyond its threshold, since when.
        active: signals that were beyond their threshold long enough, and are not over.
        moves: the newest ones, oldest first; bounded, and of several ``ADJUST`` in a row only the
            newest.
    """

    version: int = 0
    rung: Rung = Rung.NORMAL
    controls: Controls = Controls()
    admit: float = 1.0
    at: float = 0.0
    moved_at: float = 0.0
    fell_at: float | None = None
    adjusted_at: float = 0.0
    relapses: int = 0
    raised_by: Signal | None = None
    held_by: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict)
    waiting_for: Rung | None = None
    frozen: bool = False
    above_since: Mapping[Signal, float] = field(default_factory=dict)
    active: Mapping[Signal, Alarm] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
