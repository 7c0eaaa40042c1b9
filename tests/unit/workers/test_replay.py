import pytest

from chairlift.cluster.errors import LedgerError
from chairlift.cluster.protocol import Batching, Controls, FinishReason
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_format import STAGE
from chairlift.workers.ledger_records import (
    Advanced,
    Plan,
    Queued,
    Record,
    Refill,
    Retired,
    Snapshot,
    Stage,
)
from chairlift.workers.replay import replay
from support.engines import Rig, replica_info
from support.ledgers import Crowd, record, replay_bytes, tamper

STEPS = 10_000


@pytest.fixture(scope="module")
def long_ledger() -> bytes:
    """Many steps short of memory, with every kind of trouble; blocks are shared."""
    info = replica_info(blocks_total=16, max_sequence_tokens=40, max_waiting=24, max_sequences=6)
    rig = Rig(Controls(max_sequences=4, token_budget=24), info=info, eos=(5,))
    ledger = record(rig, ring_bytes=1 << 23)
    crowd = Crowd(rig, seed=1)
    while rig.engine.load.step < STEPS:
        crowd.step()
    crowd.calm()
    return ledger.content()


@pytest.fixture(scope="module")
def records(long_ledger: bytes) -> list[Record]:
    return list(parse_ledger(long_ledger))


def test_ten_thousand_eventful_steps_come_out_the_same(
    long_ledger: bytes, records: list[Record]
) -> None:
    replayed = replay_bytes(long_ledger)
    assert replayed.difference is None
    assert replayed.steps >= STEPS and replayed.decisions == 5 * replayed.steps
    assert replayed.snapshots >= 1 and replayed.skipped == 0
    # The run was eventful: else the comparison would say little.
    plans = [each for each in records if isinstance(each, Plan)]
    inputs = [each.inputs for each in records if isinstance(each, Queued | Retired)]
    assert sum(len(plan.preempted) for plan in plans) > 100
    assert sum(len(each.cancelled) for each in inputs) > 100
    assert sum(len(each.left) for each in inputs) > 10
    modes = {each.controls.batching for each in inputs if each.controls is not None}
    assert modes == set(Batching)
    assert any(each.failed for each in records if isinstance(each, Advanced))
    assert any(piece.start > 0 for plan in plans for piece in plan.slices if piece.count > 1)


def flip(offset: int):
    """Change the lowest bit of the byte at an offset after the stage's head."""

    def change(payload: bytes) -> bytes:
        at = STAGE.size + offset
        return payload[:at] + bytes((payload[at] ^ 1,)) + payload[at + 1 :]

    return change


PLAN_COUNTS = 16
BODY = {
    "a planned sequence": (Plan, lambda r: r.slices, PLAN_COUNTS),
    "where a slice starts": (Plan, lambda r: len(r.slices) == 1, PLAN_COUNTS + 8),
    "how many tokens a slice has": (Plan, lambda r: len(r.slices) == 1, PLAN_COUNTS + 12),
    "the digest of the block tables": (Plan, lambda r: r.slices, 12),
    "who was preempted": (Plan, lambda r: len(r.slices) == 2 and r.preempted, PLAN_COUNTS + 32),
    "who was admitted": (Refill, lambda r: r.admitted, 8),
    "whom the head of the line was": (Refill, lambda r: r.turned_down and not r.admitted, 16),
    "why it was turned down": (Refill, lambda r: r.turned_down and not r.admitted, 24),
    "who ended": (Retired, lambda r: r.endings and not any_input(r), 13 + 4 + 8),
    "how it ended": (Retired, lambda r: r.endings and not any_input(r), 13 + 4 + 16),
}


def any_input(record: Retired) -> bool:
    inputs = record.inputs
    return bool(inputs.controls or inputs.arrivals or inputs.cancelled or inputs.left)


@pytest.mark.parametrize("what", BODY)
def test_a_decision_that_was_changed_is_found_at_its_step(
    long_ledger: bytes, records: list[Record], what: str
) -> None:
    kind, holds, offset = BODY[what]
    halfway = records[len(records) // 50].head.step

    def chosen(each: Record) -> bool:
        return isinstance(each, kind) and each.head.step > halfway and bool(holds(each))

    changed, before = tamper(long_ledger, chosen, flip(offset))
    difference = replay_bytes(changed).difference
    assert difference is not None
    assert (difference.step, difference.stage) == (before.head.step, before.head.stage.name.lower())
    assert difference.recorded != difference.recomputed


def test_a_sampled_token_that_was_changed_shows_in_what_follows_from_it(
    long_ledger: bytes, records: list[Record]
) -> None:
    """The token itself is an input, of which the scheduler decides nothing."""
    stops = {
        each.head.step
        for each in records
        if isinstance(each, Retired) and FinishReason.STOP in dict(each.endings).values()
    }

    def ends_a_sequence(each: Record) -> bool:
        return isinstance(each, Advanced) and each.sampled == (5,) and each.head.step in stops

    changed, before = tamper(long_ledger, ends_a_sequence, flip(17))
    difference = replay_bytes(changed).difference
    assert difference is not None
    assert (difference.step, difference.what) == (before.head.step, "who ended")


def test_a_changed_state_is_found_at_the_next_snapshot(long_ledger: bytes) -> None:
    """The order of cached blocks decides nothing until one is evicted."""
    file = parse_ledger(long_ledger)
    records = list(file)
    later = [each for each in records if isinstance(each, Snapshot)][1]
    cached = later.state["pool"]["cached"]
    assert len(cached) > 1
    cached.reverse()
    difference = replay(file.header, records).difference
    assert difference is not None
    assert (difference.step, difference.stage, difference.what) == (later.step, "snapshot", "pool")


def test_a_ledger_without_a_snapshot_cannot_be_replayed(records: list[Record]) -> None:
    file = parse_ledger(small_ledger())
    stages = [each for each in file if not isinstance(each, Snapshot)]
    with pytest.raises(LedgerError, match="no snapshot"):
        replay(file.header, stages)


def test_a_missing_record_is_no_difference_but_a_fault_of_the_file() -> None:
    file = parse_ledger(small_ledger())
    stages = list(file)
    missing = next(i for i, each in enumerate(stages) if isinstance(each, Plan))
    del stages[missing]
    with pytest.raises(LedgerError, match="stage advance of step 1 stands where plan was due"):
        replay(file.header, stages)


def small_ledger() -> bytes:
    rig = Rig()
    ledger = record(rig)
    rig.submit(0)
    rig.run_until_idle()
    return ledger.content()


def test_the_stages_are_recorded_in_their_order() -> None:
    stages = [
        each.head.stage for each in parse_ledger(small_ledger()) if not isinstance(each, Snapshot)
    ]
    assert stages == list(Stage) * (len(stages) // 5)
