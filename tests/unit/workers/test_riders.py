"""Seats × steps, worked out by hand, and held against runs that took place."""

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.cluster.errors import LedgerError
from chairlift.cluster.protocol import Batching, Controls
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.rider_runs import Stay
from chairlift.workers.riders import MOST_STEPS, Riders, riders
from support.engines import Rig, replica_info
from support.ledgers import Crowd, payloads, record

ROOT = Path(__file__).parents[3]


def picture(ledger: Ledger, steps: int = MOST_STEPS) -> Riders:
    file = parse_ledger(ledger.content())
    return riders(file.header, file, steps)


def two_seats(batching: Batching = Batching.CONTINUOUS) -> tuple[Rig, Ledger]:
    rig = Rig(Controls(batching=batching, max_sequences=2, token_budget=64))
    return rig, record(rig)


def test_freed_seats_are_taken_at_once_and_static_batching_leaves_them_empty() -> None:
    rig, ledger = two_seats()
    for handle, tokens in enumerate((2, 6, 3)):
        rig.submit(handle, max_tokens=tokens, ignore_eos=True, tenant=f"t{handle}")
    rig.run_until_idle()
    found = picture(ledger)
    assert [(each.tenant, each.prompt, each.output, each.finish) for each in found.riders] == [
        ("t0", 3, 2, "length"),
        ("t1", 3, 6, "length"),
        ("t2", 3, 3, "length"),
    ]
    assert [each.ran for each in found.riders] == [
        (Stay(0, 0, 1, 1),),
        (Stay(1, 0, 5, 1),),
        (Stay(0, 2, 4, 1),),
    ]
    assert [each.static for each in found.riders] == [
        (Stay(0, 0, 1, 1),),
        (Stay(1, 0, 5, 1),),
        (Stay(0, 6, 8, 1),),
    ]
    assert (found.ran.steps, found.ran.occupancy) == (6, 11 / 12)
    assert (found.static.steps, found.static.occupancy) == (9, 11 / 18)
    assert len(found.ends) == 6
    assert (found.seats, found.batching, found.left_out) == (2, "continuous", 0)


def test_a_prompt_in_chunks_shows_for_as_long_as_it_takes() -> None:
    rig = Rig(Controls(max_sequences=2, token_budget=4))
    ledger = record(rig)
    rig.submit(0, range(10), max_tokens=2, ignore_eos=True)
    rig.run_until_idle()
    (rider,) = picture(ledger).riders
    assert rider.ran == rider.static == (Stay(0, 0, 3, 3),)


def test_who_comes_later_comes_at_the_same_step_to_either_side() -> None:
    rig, ledger = two_seats()
    rig.submit(0, max_tokens=6, ignore_eos=True)
    for _ in range(3):
        rig.engine.step()  # the first of these admits, and computes nothing
    rig.submit(1, max_tokens=2, ignore_eos=True)
    rig.run_until_idle()
    first, second = picture(ledger).riders
    assert (first.ran, first.static) == ((Stay(0, 0, 5, 1),),) * 2
    assert second.ran == (Stay(1, 3, 4, 1),)
    assert second.static == (Stay(0, 6, 7, 1),)


def test_a_window_begins_in_the_middle_of_what_runs() -> None:
    rig, ledger = two_seats()
    rig.submit(0, max_tokens=9, ignore_eos=True)
    rig.submit(1, max_tokens=6, ignore_eos=True)
    rig.submit(2, max_tokens=3, ignore_eos=True)
    rig.run_until_idle()
    found = picture(ledger, steps=5)
    assert [each.ran for each in found.riders] == [
        (Stay(0, 0, 4, 0),),
        (Stay(1, 0, 1, 0),),
        (Stay(1, 2, 4, 1),),
    ]
    assert [each.static for each in found.riders][2] == (Stay(0, 5, 7, 1),)
    assert found.static.steps == 8


def test_what_is_under_way_is_asked_for_as_far_as_it_has_come() -> None:
    rig, ledger = two_seats()
    rig.submit(0, max_tokens=1000, ignore_eos=True)
    for _ in range(11):
        rig.engine.step()
    found = picture(ledger)
    (rider,) = found.riders
    assert (rider.finish, rider.output) == ("", 10)
    assert rider.ran == rider.static == (Stay(0, 0, 9, 1),)


def test_who_is_preempted_sits_twice() -> None:
    rig = Rig(
        Controls(max_sequences=2, token_budget=64),
        info=replica_info(blocks_total=6, max_sequence_tokens=24, max_sequences=2),
    )
    ledger = record(rig)
    for handle in (0, 1):
        rig.submit(handle, range(handle, handle + 8), max_tokens=10, ignore_eos=True)
    rig.run_until_idle()
    first, second = picture(ledger).riders
    assert (first.preemptions, len(first.ran)) == (0, 1)
    assert (second.preemptions, len(second.ran), len(second.static)) == (1, 2, 1)
    assert second.ran[1].first > second.ran[0].last


@pytest.mark.parametrize("seed", range(8))
def test_the_simulation_of_a_static_run_is_that_run(seed: int) -> None:
    """Arrivals at odd moments, prompts in chunks, common prefixes, several tenants."""
    rig = Rig(Controls(batching=Batching.STATIC, max_sequences=3, token_budget=10))
    ledger, pick = record(rig), random.Random(seed)
    for handle in range(30):
        prompt = [pick.randrange(2) for _ in range(pick.randint(1, 24))]
        if rig.scheduler.num_open < 8:
            tokens = pick.randint(1, 12)
            rig.submit(handle, prompt, max_tokens=tokens, ignore_eos=True, tenant=pick.choice("ab"))
        for _ in range(pick.randint(0, 5)):
            rig.engine.step()
    rig.run_until_idle()
    found = picture(ledger)
    assert len(found.riders) > 10
    assert [each.ran for each in found.riders] == [each.static for each in found.riders]
    assert found.ran == found.static


@pytest.mark.parametrize("seed", range(4))
def test_the_simulation_is_what_a_static_engine_does_with_the_same_requests(seed: int) -> None:
    pictures = []
    for batching in (Batching.CONTINUOUS, Batching.STATIC):
        rig, pick = Rig(Controls(batching=batching, max_sequences=4)), random.Random(seed)
        ledger = record(rig)
        for handle in range(12):
            prompt = [pick.randrange(100) for _ in range(pick.randint(1, 30))]
            rig.submit(handle, prompt, max_tokens=pick.randint(1, 20), ignore_eos=True)
        rig.run_until_idle()
        pictures.append(picture(ledger))
    continuous, static = pictures
    assert {each.request: each.static for each in continuous.riders} == {
        each.request: each.ran for each in static.riders
    }
    assert continuous.static == static.ran


def test_it_is_bounded_whatever_comes() -> None:
    info = replica_info(max_sequences=100, max_waiting=2000)
    rig = Rig(Controls(max_sequences=100, token_budget=1000), info=info)
    ledger = record(rig)
    for handle in range(1500):
        rig.submit(handle, max_tokens=1 + handle % 7, ignore_eos=True)
    rig.run_until_idle()
    found = picture(ledger, steps=10_000)
    assert len(found.riders) == 500
    assert found.left_out == 1000
    assert max(stay.seat for each in found.riders for stay in (*each.ran, *each.static)) < 64
    assert found.seats == 100


@pytest.mark.parametrize("seed", range(6))
def test_trouble_of_every_kind_is_drawn_as_well(seed: int) -> None:
    """Cancellations, failed steps, changed Controls, a ring that has dropped its beginning."""
    rig = Rig()
    ledger = record(rig, ring_bytes=65_536)
    crowd = Crowd(rig, seed)
    for _ in range(400):
        crowd.step()
    found = picture(ledger, steps=50)
    assert 10 < found.ran.steps <= 50
    assert found.static.complete
    for each in found.riders:
        for stay in (*each.ran, *each.static):
            assert 0 <= stay.seat < found.seats
            assert 0 <= stay.prompt <= stay.last - stay.first + 1
    held = [
        (stay.seat, step)
        for each in found.riders
        for stay in each.ran
        for step in range(stay.first, stay.last + 1)
    ]
    assert len(set(held)) == len(held) == round(found.ran.occupancy * found.seats * found.ran.steps)


def test_without_a_snapshot_or_a_step_there_is_no_picture() -> None:
    rig, ledger = two_seats()
    rig.engine.step()
    with pytest.raises(LedgerError, match="no step"):
        picture(ledger)
    content = ledger.content()
    (at, payload), *_ = payloads(content)
    file = parse_ledger(content[:at] + content[at + 8 + len(payload) :])
    with pytest.raises(LedgerError, match="no snapshot"):
        riders(file.header, file)


def test_as_a_process_it_writes_json_or_says_what_is_wrong() -> None:
    rig, ledger = two_seats()
    rig.submit(0, max_tokens=3)
    rig.run_until_idle()

    def run(content: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "chairlift.workers.riders", "240"]
        return subprocess.run(command, input=content, capture_output=True, cwd=ROOT, timeout=60)

    done = run(ledger.content())
    expected = json.loads(json.dumps(dataclasses.asdict(picture(ledger))))
    assert (done.returncode, json.loads(done.stdout)) == (0, expected)
    done = run(ledger.content()[:-1])
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"damaged at byte" in done.stderr
