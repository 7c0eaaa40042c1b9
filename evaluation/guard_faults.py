"""A fault for each of the Guard's signals, planted in simulated time: ``guard_faults``.

``python -m chairlift.evaluation.guard_faults`` plays each fault twice. Once the Guard listens to
the one signal alone: does that signal see it, does the ladder go to the rung that the policy names,
by whom is it owned, and is all that done within the time that the policy states? And once it
listens to all of them, as it ships: which one was first, and was the rung reached at least?
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from chairlift.cluster.guard_policy import GuardPolicy, SignalPolicy, load_policy
from chairlift.cluster.guard_state import Move, MoveKind, Rung, Signal
from chairlift.evaluation.guard_replica import Machine
from chairlift.evaluation.guard_traffic import Traffic
from chairlift.evaluation.guard_world import Course, Fault, Look, World, WorldSettings, play

__all__ = [
    "FAULTS",
    "PLANTED_S",
    "Found",
    "Planted",
    "alone",
    "answer",
    "find",
    "main",
    "table",
]

PLANTED_S = 30.0
TENANTS = ("one", "two", "three")
_NEVER_S = 1e9

SMALL = Machine(blocks=110)
CROWDED = Machine(seats=48, blocks=300)
ROOMY = Machine(blocks=4096)
"""Blocks for 1,000 tokens and more in each seat."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: what comes, or what breaks, from ``PLANTED_S`` on.

    Attributes:
        what: in words.
        world: with what is there before; a second of simulated time is a second of its clock.
        more: that comes then.
        breaks: what is done to the world then.
        lasts_s: until the end; longer than the policy's promise.
    """

    signal: Signal
    what: str
    world: WorldSettings
    more: tuple[Traffic, ...] = ()
    breaks: Callable[[World], None] | None = None
    lasts_s: float = 30.0

    def play(self, policy: GuardPolicy) -> Course:
        begun = tuple(replace(each, begin_s=PLANTED_S, lasts_s=self.lasts_s) for each in self.more)
        settings = replace(
            self.world,
            traffic=self.world.traffic + begun,
            duration_s=PLANTED_S + self.lasts_s,
            policy=policy,
        )
        faults = [] if self.breaks is None else [Fault(PLANTED_S, self.breaks)]
        return play(settings, faults)


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a planted fault; times are seconds after it.

    Attributes:
        terms: of its signal, as the policy states them.
        seen_s: when the signal was active, with nobody listening to the others, …
        moved_s: … when the Guard did what the signal asks for: up to its rung, or a freeze, …
        owner: … and who answers for that.
        before: moves before the fault; there should be none.
        first: the earliest of the signals that were active first, when all are listened to.
        reached_s: when the Guard then stood where this signal asks for, or above.
        highest: rung with all of them.
    """

    planted: Planted
    terms: SignalPolicy
    seen_s: float | None
    moved_s: float | None
    owner: str
    before: int
    first: Signal | None
    reached_s: float | None
    highest: Rung

    @property
    def holds(self) -> bool:
        """What the policy promises of this signal."""
        return (
            self.moved_s is not None
            and self.moved_s <= self.terms.within_s
            and self.owner == self.terms.owner
            and self.reached_s is not None
            and self.reached_s <= self.terms.within_s
            and not self.before
        )


def _tenants(
    load: float, prompt: str = "uniform:16,64", output: str = "uniform:8,32"
) -> tuple[Traffic, ...]:
    """Three that together send so many requests a second."""
    rate = load / len(TENANTS)
    return tuple(Traffic(name, rate, prompt=prompt, output=output) for name in TENANTS)


def _slow(world: World) -> None:
    world.replicas[0].slower = 2.5


def _freeze(world: World) -> None:
    world.replicas[0].frozen = True


CALM = WorldSettings(_tenants(14.0), 0.0)
"""About half of what two replicas can serve."""

FAULTS = (
    Planted(Signal.OFFERED_LOAD, "twice as many requests as can be served", CALM, _tenants(38.0)),
    Planted(
        Signal.STEPS_LEFT,
        "long outputs on a small KV cache",
        replace(CALM, machine=SMALL),
        _tenants(7.0, output="uniform:150,250"),
    ),
    Planted(Signal.SATURATED_STEPS, "a third more than can be served", CALM, _tenants(20.0)),
    Planted(Signal.SLOW_STEPS, "steps of one replica take 2.5 times as long", CALM, breaks=_slow),
    Planted(Signal.QUEUE_DELAY, "two thirds more than can be served", CALM, _tenants(29.0)),
    Planted(
        Signal.OLDEST_SLOPE,
        "all seats are taken by outputs that do not end",
        replace(CALM, machine=ROOMY),
        (Traffic("endless", 4.0, output="constant:3000"),),
    ),
    Planted(
        Signal.KV_USE,
        "longer requests on a KV cache for half of the seats",
        replace(CALM, machine=CROWDED),
        _tenants(14.0, prompt="uniform:100,140", output="uniform:60,90"),
    ),
    Planted(
        Signal.RECOMPUTATION,
        "outputs outgrow the KV cache",
        replace(CALM, machine=replace(SMALL, blocks=80)),
        _tenants(20.0, output="uniform:100,200"),
    ),
    Planted(
        Signal.UNFAIRNESS,
        "one tenant floods, and order of arrival is all that counts",
        replace(CALM, fair=False),
        (Traffic("flood", 120.0),),
        lasts_s=62.0,
    ),
    Planted(
        Signal.CONTRADICTION,
        "load reports of one replica stand still, and then more comes",
        replace(CALM, traffic=_tenants(3.0)),
        _tenants(16.0),
        _freeze,
        lasts_s=62.0,
    ),
    Planted(
        Signal.BURN_RATE,
        "long prompts slow down everybody's tokens",
        replace(CALM, per_token_s=0.05),
        _tenants(6.0, prompt="uniform:200,300"),
        lasts_s=62.0,
    ),
)


def alone(policy: GuardPolicy, signal: Signal) -> GuardPolicy:
    """The same, but nobody listens to the other signals."""
    signals = {
        each: terms if each is signal else terms.model_copy(update={"for_s": _NEVER_S})
        for each, terms in policy.signals.items()
    }
    return policy.model_copy(update={"signals": signals})


def find(planted: Planted, policy: GuardPolicy) -> Found:
    """Play it, with its signal alone and with all of them."""
    terms = policy.signals[planted.signal]
    lone, full = planted.play(alone(policy, planted.signal)), planted.play(policy)
    move = answer(lone, terms)
    seen = next((each for each in _after(full) if each.state.active), None)
    return Found(
        planted=planted,
        terms=terms,
        seen_s=_when(each for each in _after(lone) if planted.signal in each.state.active),
        moved_s=None if move is None else Course.at_s(move) - PLANTED_S,
        owner="" if move is None else move.owner,
        before=sum(Course.at_s(each) < PLANTED_S for each in (*lone.moves, *full.moves)),
        first=None if seen is None else min(seen.state.active, key=list(Signal).index),
        reached_s=_when(each for each in _after(full) if _stands(each, terms)),
        highest=full.highest,
    )


def answer(course: Course, terms: SignalPolicy) -> Move | None:
    """The first move that does what the policy asks for; None without any."""
    return next((each for each in course.moves if _answers(each, terms)), None)


def _answers(move: Move, terms: SignalPolicy) -> bool:
    """Whether this is what the policy asks for."""
    if terms.rung is None:
        return move.kind is MoveKind.FREEZE
    return move.kind is MoveKind.UP and move.after >= terms.rung


def _stands(look: Look, terms: SignalPolicy) -> bool:
    return look.state.frozen if terms.rung is None else look.state.rung >= terms.rung


def _after(course: Course) -> list[Look]:
    return [look for look in course.looks if look.at_s >= PLANTED_S]


def _when(looks: Iterable[Look]) -> float | None:
    """Seconds from the fault to the first of them."""
    first = next(iter(looks), None)
    return None if first is None else first.at_s - PLANTED_S


def table(found: Sequence[Found]) -> str:
    """For a reader at a terminal."""
    rows = [
        (
            "signal",
            "fault",
            "seen",
            "moved",
            "stated",
            "rung",
            "owner",
            "first of all",
            "there",
            "highest",
            "",
        )
    ]
    for each in found:
        rung = "(freeze)" if each.terms.rung is None else each.terms.rung.name.lower()
        rows.append(
            (
                each.planted.signal.value,
                each.planted.what,
                _seconds(each.seen_s),
                _seconds(each.moved_s),
                _seconds(each.terms.within_s),
                rung,
                each.owner,
                "none" if each.first is None else each.first.value,
                _seconds(each.reached_s),
                each.highest.name.lower(),
                "holds" if each.holds else "DOES NOT HOLD",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f} s"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 0 if every fault is answered as the policy says."""
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.guard_faults",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--policy", metavar="FILE", help="another guard.yaml")
    flags = parser.parse_args(argv)
    policy = load_policy(flags.policy)
    found = [find(planted, policy) for planted in FAULTS]
    print(table(found))
    return 0 if all(each.holds for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
