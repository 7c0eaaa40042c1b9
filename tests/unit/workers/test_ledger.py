from pathlib import Path

import pytest

from chairlift.cluster.protocol import Batching, Controls, FinishReason, Priority
from chairlift.workers.decisions import Reason
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_file import open_ledger, parse_ledger
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.ledger_records import (
    Advanced,
    Gap,
    Note,
    Plan,
    PlannedSlice,
    Queued,
    Record,
    Refill,
    Retired,
    Snapshot,
)
from chairlift.workers.sequence import SequenceKey, StepPlan
from support.engines import Rig, replica_info
from support.ledgers import Crowd, FakeClock, record, replay_bytes


def records_of(ledger: Ledger, step: int) -> list[Record]:
    records = list(parse_ledger(ledger.content()))
    return [each for each in records if hasattr(each, "head") and each.head.step == step]


def folder(path: Path, max_bytes: int = 1 << 22) -> LedgerFolder:
    return LedgerFolder(path, "r", max_bytes, wall_clock=lambda: 0.0)


def files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_step_is_recorded_at_its_five_boundaries() -> None:
    clock = FakeClock()
    rig = Rig(Controls(max_sequences=1, token_budget=64))
    ledger = record(rig, clock=clock)

    def compute(_plan: StepPlan) -> None:
        clock.now += 0.25

    rig.during_advance = compute
    rig.submit(0, (1, 2, 3, 4, 5), max_tokens=1)
    rig.submit(1, (7, 8))
    rig.engine.step()  # nothing ran, one was admitted
    rig.engine.step()
    queued, plan, advanced, retired, refill = records_of(ledger, 2)
    assert isinstance(queued, Queued) and isinstance(plan, Plan)
    assert isinstance(advanced, Advanced) and isinstance(retired, Retired)
    assert isinstance(refill, Refill)
    assert plan.slices == (PlannedSlice(0, 0, 5),)
    assert (plan.head.tokens, plan.head.blocks_used, plan.head.running) == (5, 2, 1)
    assert advanced.head.seconds == 0.25 and advanced.kv_read == 5 and len(advanced.sampled) == 1
    assert retired.endings == ((SequenceKey(0, 0), FinishReason.LENGTH),)
    assert (retired.head.tokens, retired.head.blocks_used, retired.head.running) == (1, 0, 0)
    assert refill.admitted == (1,) and refill.turned_down == ()


def test_what_was_turned_down_is_recorded_with_its_reason() -> None:
    rig = Rig(Controls(max_sequences=1, token_budget=64))
    ledger = record(rig)
    for handle in range(3):
        rig.submit(handle)
    rig.engine.step()
    refill = records_of(ledger, 1)[-1]
    assert isinstance(refill, Refill)
    (turned_down,) = refill.turned_down
    assert (turned_down.key.handle, turned_down.count) == (1, 2)
    assert turned_down.reason is Reason.MAX_SEQUENCES


def test_controls_are_recorded_with_who_set_them() -> None:
    rig = Rig()
    ledger = record(rig)
    rig.intake.set_controls(Controls(3, Batching.STATIC, 17, 2, by_person=True))
    rig.engine.step()
    queued = records_of(ledger, 1)[0]
    assert isinstance(queued, Queued)
    assert queued.inputs.controls == Controls(3, Batching.STATIC, 17, 2, by_person=True)
    assert queued.head.controls_version == 3


def test_what_arrives_and_that_all_is_handed_over_are_recorded_as_they_came() -> None:
    rig = Rig()
    ledger = record(rig)
    rig.intake.set_controls(Controls(1, fair=False))
    whose = {"tenant": "a", "priority": Priority.BATCH, "weight": 2.5}
    rig.submit(0, (1, 2), choice=3, output=(7, 8), max_tokens=5, **whose)
    rig.engine.step()
    rig.engine.hand_over()
    rig.engine.step()
    queued, *_ = records_of(ledger, 1)
    assert isinstance(queued, Queued) and queued.inputs.controls == Controls(
        1, max_sequences=4, fair=False
    )
    (arrival,) = queued.inputs.arrivals
    assert (arrival.tokens, arrival.num_prompt, arrival.choice) == ([1, 2, 7, 8], 2, 3)
    assert (arrival.tenant, arrival.priority, arrival.weight) == ("a", Priority.BATCH, 2.5)
    handed_over, *_ = records_of(ledger, 2)
    assert isinstance(handed_over, Queued) and handed_over.inputs.hand_over
    assert handed_over.endings == ((SequenceKey(0, 0), FinishReason.HANDED_OVER),)


def test_step_time_and_output_are_predicted_from_what_was_seen() -> None:
    clock = FakeClock()
    rig = Rig(info=replica_info(max_waiting=64))
    ledger = record(rig, clock=clock)

    def compute(plan: StepPlan) -> None:
        clock.now += 0.010 + 0.001 * plan.num_tokens

    rig.during_advance = compute
    for handle in range(40):
        rig.submit(handle, range(handle, handle + 6), max_tokens=5)
    rig.run_until_idle()
    records = list(parse_ledger(ledger.content()))
    advanced = [each for each in records if isinstance(each, Advanced) and each.predicted_s]
    assert advanced[0].head.step <= 20
    assert advanced[-1].predicted_s == pytest.approx(advanced[-1].head.seconds, rel=0.05)
    expected = [pair for each in records if isinstance(each, Refill) for pair in each.remaining]
    assert expected[0] is None and expected[-1] == (5, 5)


def test_a_ring_that_was_overwritten_still_replays() -> None:
    info = replica_info(blocks_total=16, max_sequence_tokens=40)
    rig = Rig(info=info)
    ledger = record(rig, ring_bytes=64_000)
    crowd = Crowd(rig, seed=3)
    for _ in range(800):
        crowd.step()
        assert len(ledger.content()) < 65_000
    replayed = replay_bytes(ledger.content())
    assert replayed.difference is None
    assert 10 < replayed.steps < 700


def test_a_prompt_larger_than_the_ring_leaves_a_gap_and_the_replay_goes_on_after_it() -> None:
    rig = Rig(Controls(max_sequences=4, token_budget=5000))
    ledger = record(rig, ring_bytes=8_000)
    rig.submit(0, [1] * 3000, max_tokens=2)
    rig.run_until_idle()
    for handle in range(1, 5):
        rig.submit(handle)
    rig.run_until_idle()
    assert any(isinstance(each, Gap) for each in parse_ledger(ledger.content()))
    replayed = replay_bytes(ledger.content())
    assert replayed.difference is None and replayed.steps > 0


def test_a_failed_step_is_written_to_disk_with_all_of_that_step(tmp_path: Path) -> None:
    rig = Rig()
    record(rig, folder=folder(tmp_path))

    def fail(_plan: StepPlan) -> None:
        raise RuntimeError("injected")

    rig.during_advance = fail
    rig.submit(0)
    rig.run_until_idle()
    (name,) = files(tmp_path)
    assert name == "r-19700101T000000Z-0001-failed-step.ledger"
    *_, retired, refill, note = open_ledger(tmp_path / name)
    assert isinstance(retired, Retired) and retired.endings[0][1] is FinishReason.FAILED
    assert isinstance(refill, Refill)
    assert isinstance(note, Note) and note.text == "failed-step"
    assert replay_bytes((tmp_path / name).read_bytes()).difference is None


def test_anomalies_in_a_row_are_noted_but_written_once_a_minute(tmp_path: Path) -> None:
    clock, rig = FakeClock(), Rig()
    ledger = record(rig, folder=folder(tmp_path), clock=clock)

    def fail(_plan: StepPlan) -> None:
        raise RuntimeError("injected")

    rig.during_advance = fail
    for handle, passes in enumerate((0.0, 30.0, 31.0)):
        clock.now += passes
        rig.submit(handle)
        rig.run_until_idle()
    assert len(files(tmp_path)) == 2
    notes = [each for each in parse_ledger(ledger.content()) if isinstance(each, Note)]
    assert len(notes) == 3


def test_a_step_far_slower_than_predicted_is_an_anomaly(tmp_path: Path) -> None:
    clock, rig = FakeClock(), Rig()
    record(rig, folder=folder(tmp_path), clock=clock)
    slow_at = 40

    def compute(_plan: StepPlan) -> None:
        clock.now += 5.0 if len(rig.plans) == slow_at else 0.1

    rig.during_advance = compute
    rig.submit(0, max_tokens=60)
    rig.run_until_idle()
    (name,) = files(tmp_path)
    assert name.endswith("slow-step.ledger")
    *_, note = open_ledger(tmp_path / name)
    assert isinstance(note, Note) and note.step == slow_at + 1


def test_a_broken_loop_is_written_to_disk(tmp_path: Path) -> None:
    rig = Rig()
    record(rig, folder=folder(tmp_path))
    rig.submit(0)
    rig.engine.step()
    rig.scheduler.running.clear()  # it is open, but neither runs nor waits
    rig.engine.run()
    (name,) = files(tmp_path)
    *_, note = open_ledger(tmp_path / name)
    assert isinstance(note, Note) and "the engine's loop failed" in note.text
    assert rig.engine.failed is not None


def test_a_journal_holds_everything_in_files_that_replay_and_stay_within_the_bound(
    tmp_path: Path,
) -> None:
    info = replica_info(blocks_total=16, max_sequence_tokens=40)
    rig, bound = Rig(info=info), 400_000
    record(rig, ring_bytes=32_000, folder=folder(tmp_path, bound), always=True)
    crowd = Crowd(rig, seed=4)
    steps = 0
    for _ in range(1500):
        crowd.step()
    crowd.calm()
    rig.engine.stop()
    rig.engine.run()
    names = files(tmp_path)
    assert len(names) > 3 and not names[0].startswith("r-19700101T000000Z-0001")
    assert sum((tmp_path / name).stat().st_size for name in names) <= bound
    for name in names:
        replayed = replay_bytes((tmp_path / name).read_bytes())
        assert replayed.difference is None and replayed.skipped == 0
        first, *_ = open_ledger(tmp_path / name)
        assert isinstance(first, Snapshot)
        steps += replayed.steps
    assert steps > 500


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    clock, rig = FakeClock(), Rig()
    ledger = record(rig, folder=folder(tmp_path), always=True, clock=clock)
    rig.submit(0, max_tokens=30)
    for _ in range(20):
        clock.now += 0.3
        rig.engine.step()
        (name,) = files(tmp_path)
        assert replay_bytes((tmp_path / name).read_bytes()).difference is None
    assert replay_bytes((tmp_path / name).read_bytes()).steps > 15
    ledger.close()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    rig = Rig()
    record(rig, folder=folder(occupied), always=True)
    key = rig.submit(0)
    rig.run_until_idle()
    assert rig.answer(key)[1] is FinishReason.LENGTH


def test_an_engine_decides_the_same_with_and_without_a_ledger() -> None:
    heard = []
    for is_recorded in (False, True):
        rig = Rig(info=replica_info(blocks_total=16, max_sequence_tokens=40))
        if is_recorded:
            record(rig)
        crowd = Crowd(rig, seed=5)
        for _ in range(300):
            crowd.step()
        heard.append({key: (each.tokens, each.endings) for key, each in rig.heard.items()})
    assert heard[0] == heard[1] and len(heard[0]) > 20


def test_it_can_be_read_in_the_middle_of_a_step() -> None:
    """So a replica that is stuck in one tells what it is stuck with."""
    rig, read = Rig(), []
    ledger = record(rig)
    rig.during_advance = lambda plan: read.append(b"".join(ledger.parts(0, 0.0)))
    rig.submit(0)
    rig.run_until_idle()
    assert len(read) == 4
    for content in read:
        *_, last = parse_ledger(content)
        assert isinstance(last, Plan)
        assert last.slices


def test_files_are_for_the_services_own_user_alone(tmp_path: Path) -> None:
    place = folder(tmp_path / "new")
    place.open_journal(b"header")
    place.close()
    assert place.dump("anomaly", [b"content"]) is not None
    modes = {each.stat().st_mode & 0o777 for each in (tmp_path / "new").iterdir()}
    assert modes == {0o600}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
