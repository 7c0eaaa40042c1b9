"""What the records of a ledger say, once they are read.

Owns the types that reader, replay, summary and explanation share. It knows no bytes
(``ledger_format``) and no files. Sequences are named by ``arrival``, the order in which they came
to the engine, where they were seen before; by their key where they may not have been.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from chairlift.cluster.protocol import Controls, FinishReason
from chairlift.workers.decisions import TurnedDown
from chairlift.workers.sequence import Sequence, SequenceKey

__all__ = [
    "Advanced",
    "Endings",
    "Gap",
    "Header",
    "Inputs",
    "Note",
    "Plan",
    "PlannedSlice",
    "Queued",
    "Record",
    "Refill",
    "Retired",
    "Snapshot",
    "Stage",
    "StageRecord",
]


class Stage(enum.IntEnum):
    """The five stages of a step, in their order."""

    QUEUE = 1
    PLAN = 2
    ADVANCE = 3
    RETIRE = 4
    REFILL = 5


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for a whole file.

    Attributes:
        started_at: seconds since 1970 at the moment that the records' clock calls ``clock_at``.
        eos_token_ids: ascending.
        controls: in force at the start of the process.
    """

    model: str
    replica_id: str
    block_size: int
    num_blocks: int
    prefix_cache: bool
    eos_token_ids: tuple[int, ...]
    controls: Controls
    started_at: float
    clock_at: float


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What is noted at every stage boundary, whatever the stage.

    Attributes:
        step: number of the step; a turn that finds nothing to do leaves it to the next one.
        at: the end of the stage, in seconds of the engine's clock.
        seconds: what the stage took.
        cpu_seconds: processor time of the engine's thread in it.
        running, waiting, blocks_used: at the end of the stage.
        tokens: that came in prompts (queue), were planned, were computed (advance), were
            generated (retire), and that the admitted have to compute (refill).
    """

    stage: Stage
    step: int
    controls_version: int
    at: float
    seconds: float
    cpu_seconds: float
    running: int
    waiting: int
    blocks_used: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the intake handed over; the ledger's copy of ``intake.Drained``."""

    controls: Controls | None = None
    arrivals: tuple[Sequence, ...] = ()
    cancelled: tuple[SequenceKey, ...] = ()
    left: tuple[int, ...] = ()
    hand_over: bool = False


Endings = tuple[tuple[SequenceKey, FinishReason], ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Stage 1: what came in, and which sequences its cancellations ended."""

    head: StageRecord
    inputs: Inputs
    endings: Endings


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """Tokens ``start … start + count - 1`` of the sequence that came as number ``arrival``."""

    arrival: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Stage 2: what was chosen, who had to yield, who was passed over.

    Attributes:
        tables: a digest of the planned sequences' block tables.
    """

    head: StageRecord
    slices: tuple[PlannedSlice, ...]
    preempted: tuple[int, ...]
    turned_down: tuple[TurnedDown, ...]
    tables: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """Stage 3: what the runner brought.

    Attributes:
        predicted_s: what the step was expected to take; None while nothing is known.
        kv_read: positions of the KV cache that the step read.
        sampled: one token for each slice that samples, in the order of the plan.
    """

    head: StageRecord
    failed: bool
    predicted_s: float | None
    kv_read: int
    sampled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retired:
    """Stage 4: what came in during the step, and which sequences ended."""

    head: StageRecord
    inputs: Inputs
    endings: Endings


@dataclass(frozen=True, slots=True)
class Refill:
    """Stage 5: who got a seat, and why others did not.

    Attributes:
        remaining: of each admitted sequence, p50 and p90 of the output that was expected to be
            left; None where nothing was known.
    """

    head: StageRecord
    admitted: tuple[int, ...]
    turned_down: tuple[TurnedDown, ...]
    remaining: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of the scheduler before step ``step``: a place to start a replay."""

    step: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """A record of ``size`` bytes did not fit; nothing can be replayed until the next snapshot."""

    step: int
    size: int


@dataclass(frozen=True, slots=True)
class Note:
    """An anomaly, in words."""

    step: int
    at: float
    text: str


Record = Queued | Plan | Advanced | Retired | Refill | Snapshot | Gap | Note
