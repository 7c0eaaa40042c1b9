import json

from chairlift.cluster.protocol import Controls
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.snapshot import capture, describe, restore
from support.engines import Rig, replica_info
from support.ledgers import Crowd


def busy_scheduler() -> Scheduler:
    """Short of memory, with waiting, running and preempted sequences and cached blocks."""
    info = replica_info(blocks_total=16, max_sequence_tokens=40, max_waiting=24)
    rig = Rig(Controls(max_sequences=4, token_budget=24), info=info, eos=(5,))
    crowd = Crowd(rig, seed=2)
    for _ in range(2000):
        crowd.step()
        scheduler = rig.scheduler
        if any(each.preemptions for each in scheduler.waiting) and len(scheduler.running) > 1:
            return scheduler
    raise AssertionError("nothing was preempted")


def test_a_restored_scheduler_is_sound_and_of_the_same_state() -> None:
    scheduler = busy_scheduler()
    state = json.loads(json.dumps(capture(scheduler)))
    restored = restore(describe(scheduler, "m", "r"), state)
    restored.check_integrity()
    assert capture(restored) == state == capture(scheduler)
    assert restored.num_open == scheduler.num_open


def test_a_restored_scheduler_plans_the_same() -> None:
    scheduler = busy_scheduler()
    restored = restore(describe(scheduler, "m", "r"), capture(scheduler))
    for each in (scheduler, restored):
        each.refill()

    def planned(each: Scheduler) -> list[tuple]:
        return [
            (piece.sequence.arrival, piece.start, piece.count, tuple(piece.sequence.blocks))
            for piece in each.plan().slices
        ]

    assert planned(scheduler) == planned(restored) != []
