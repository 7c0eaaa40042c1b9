"""Who sat where: a ledger's newest steps as seats × steps, and the same under static batching.

Owns how the pictures are made of the runs (``rider_runs``).

    records   … snapshot … │ steps that are shown │
    as it ran   replayed ─►│── observed ─────────►│ end of the records
    static      a copy ───►│── arrivals at the steps at which they came; until all is done ──►

It takes up to a second of plain Python, most of it for the steps from the snapshot on, during which
a thread of the same process would keep an engine or a router from its tokens. So
``python -m chairlift.workers.riders`` does it in a process of its own, at the lowest priority:
ledger in at stdin, JSON out at stdout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.cluster.errors import LedgerError
from chairlift.cluster.protocol import FinishReason
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_records import Gap, Header, Plan, Queued, Record, Snapshot
from chairlift.workers.rider_runs import Known, Player, Seats, Static, Stay
from chairlift.workers.snapshot import capture, restore

__all__ = ["Picture", "Rider", "Riders", "riders"]

MOST_STEPS = 240
MOST_SEATS = 64
MOST_RIDERS = 500
ID_CHARACTERS = 12
NICENESS = 19


@dataclass(frozen=True, slots=True)
class Rider:
    """A sequence that held a seat.

    Attributes:
        request: the beginning of the request's id.
        prompt, output: tokens; of the output what there was at the end.
        finish: how it ended; "" if it had not.
        preemptions: within the steps that are shown.
        ran, static: its stays; several where it was preempted.
    """

    request: str
    choice: int
    tenant: str
    prompt: int
    output: int
    finish: str
    preemptions: int
    ran: tuple[Stay, ...]
    static: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """One way of batching.

    Attributes:
        steps: until all was done; of the one that was recorded, those that are shown.
        occupancy: of all seats in all of these steps, the share that was held.
        complete: False for a simulation that was given up after too many steps.
    """

    steps: int
    occupancy: float
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Riders:
    """Both pictures.

    Attributes:
        batching: that was in force at the end.
        seats: in all; riders on seats from ``MOST_SEATS`` on are left out.
        began_at: the beginning of the first step, in seconds since 1970.
        ends: of each recorded step, in seconds after that.
        riders: in the order of their first stay, the newest ``MOST_RIDERS``.
        left_out: riders that are not there.
    """

    replica_id: str
    batching: str
    seats: int
    began_at: float
    ends: tuple[float, ...]
    ran: Picture
    static: Picture
    riders: tuple[Rider, ...]
    left_out: int


def riders(header: Header, records: Iterable[Record], steps: int = MOST_STEPS) -> Riders:
    """The last ``steps`` steps of a ledger, ``MOST_STEPS`` at the most.

    Raises:
        LedgerError: it has no snapshot to start from, or no step after one.
    """
    kept = list(records)
    start, begin = _places(kept, max(1, min(steps, MOST_STEPS)))
    snapshot = kept[start]
    assert isinstance(snapshot, Snapshot)
    try:
        player = Player(restore(header, snapshot.state))
        for record in kept[start + 1 : begin]:
            player.play(record)
        fork = restore(header, capture(player.scheduler))
        player.observe()
        for record in kept[begin:]:
            player.play(record)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise LedgerError(f"the records do not follow upon the snapshot: {error!r}") from None
    static = Static(fork, player).run()
    return _put_together(header, player, static)


def _places(records: list[Record], steps: int) -> tuple[int, int]:
    """Where to start from, a snapshot, and where the first turn begins that is shown."""
    gap = max((at for at, each in enumerate(records) if isinstance(each, Gap)), default=-1)
    snapshots = [at for at, each in enumerate(records) if isinstance(each, Snapshot) and at > gap]
    if not snapshots:
        raise LedgerError("there is no snapshot to start from")
    computed = [
        at
        for at, each in enumerate(records)
        if isinstance(each, Plan) and each.slices and at > snapshots[0]
    ]
    if not computed:
        raise LedgerError("there is no step after the snapshot")
    if len(computed) <= steps:
        return snapshots[0], snapshots[0] + 1
    begin = computed[-steps - 1]
    while not isinstance(records[begin], Queued):
        begin += 1
    return max(at for at in snapshots if at < begin), begin


def _put_together(header: Header, player: Player, static: tuple[Seats, bool]) -> Riders:
    ran, (simulated, complete) = player.seats, static
    order = sorted(ran.stays, key=lambda arrival: (ran.stays[arrival][0].first, arrival))
    shown = [each for each in order if all(s.seat < MOST_SEATS for s in ran.stays[each])]
    shown = shown[-MOST_RIDERS:]

    def picture(seats: Seats, complete: bool = True) -> Picture:
        return Picture(seats.steps, seats.used / (player.num_seats * seats.steps), complete)

    return Riders(
        replica_id=header.replica_id,
        batching=player.scheduler.controls.batching.value,
        seats=player.num_seats,
        began_at=header.started_at + player.began_at - header.clock_at,
        ends=tuple(round(at - player.began_at, 4) for at in player.ends),
        ran=picture(ran),
        static=picture(simulated, complete),
        riders=tuple(_rider(player.known[each], ran, simulated) for each in shown),
        left_out=len(order) - len(shown),
    )


def _rider(known: Known, ran: Seats, static: Seats) -> Rider:
    sequence = known.sequence
    return Rider(
        request=sequence.request_id[:ID_CHARACTERS],
        choice=sequence.choice,
        tenant=sequence.tenant,
        prompt=sequence.num_prompt,
        output=sequence.num_output,
        finish=_name(sequence.finish),
        preemptions=sequence.preemptions - known.preemptions,
        ran=ran.told(sequence.arrival),
        static=tuple(s for s in static.told(sequence.arrival) if s.seat < MOST_SEATS),
    )


def _name(finish: FinishReason | None) -> str:
    return "" if finish is None else finish.name.lower()


def main(steps: int) -> int:
    """From a ledger at stdin to JSON at stdout; what is wrong with it goes to stderr."""
    os.nice(NICENESS)
    try:
        ledger = parse_ledger(sys.stdin.buffer.read())
        found = riders(ledger.header, ledger, steps)
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    json.dump(dataclasses.asdict(found), sys.stdout, separators=(",", ":"))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
