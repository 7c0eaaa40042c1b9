import threading
import time

import pytest

from chairlift.cluster.protocol import Controls, Priority, Refusal
from chairlift.workers.intake import Drained, Intake
from chairlift.workers.sequence import SequenceKey
from support.engines import replica_info, submission, wait_until


@pytest.fixture
def intake():
    return Intake(replica_info())


def refusal(intake: Intake, *args, origin: int = 0, **kwargs) -> Refusal | None:
    return intake.submit(origin, submission(*args, **kwargs)).refusal


def test_accepted_choices_come_out_as_sequences_in_order(intake):
    assert refusal(intake, 10, (7, 8), n=2, seed=5, origin=3) is None
    assert refusal(intake, 1, (9,), origin=4) is None
    arrivals = intake.drain().arrivals
    assert [(a.key, a.choice, a.arrival, a.tokens) for a in arrivals] == [
        (SequenceKey(3, 10), 0, 0, [7, 8]),
        (SequenceKey(3, 11), 1, 1, [7, 8]),
        (SequenceKey(4, 1), 0, 2, [9]),
    ]
    assert arrivals[0].tokens is not arrivals[1].tokens
    assert {a.sampling.seed for a in arrivals[:2]} == {5}
    assert intake.num_open == 3


def test_class_and_weight_go_with_each_choice(intake):
    refusal(intake, 1, n=2, tenant="a", priority=Priority.BATCH, weight=3.0)
    arrivals = intake.drain().arrivals
    assert [(a.tenant, a.priority, a.weight) for a in arrivals] == [("a", Priority.BATCH, 3.0)] * 2


def test_a_choice_goes_on_after_its_output(intake):
    refusal(intake, 7, (1, 2), choice=2, output=(8, 9), max_tokens=3)
    (arrival,) = intake.drain().arrivals
    assert (arrival.key.handle, arrival.choice) == (7, 2)
    assert (arrival.tokens, arrival.num_prompt, arrival.num_output) == ([1, 2, 8, 9], 2, 2)
    assert arrival.resumes and arrival.max_total == 5


def test_nothing_is_handed_over_twice(intake):
    refusal(intake, 1)
    intake.cancel(0, [1])
    intake.set_controls(Controls(version=1))
    intake.hand_over()
    assert intake.drain().hand_over
    assert intake.drain() == Drained()


class TestRefusal:
    def test_token_outside_the_vocabulary_names_the_field(self, intake):
        answer = intake.submit(0, submission(5, (1, 1000)))
        assert (answer.handle, answer.refusal) == (5, Refusal.INVALID)
        assert answer.detail.startswith("prompt:") and "1000" in answer.detail

    @pytest.mark.parametrize(
        ("name", "tokens"),
        [
            ("stop_token_ids", (1, 1000)),
            ("allowed_token_ids", (1000,)),
            ("logit_bias", ((3, 1.0), (1000, 1.0))),
            ("output", (1, 1000)),
        ],
    )
    def test_parameters_outside_the_vocabulary_name_the_field(self, intake, name, tokens):
        """There they would be an error of the step, for everybody in it."""
        answer = intake.submit(0, submission(5, **{name: tokens}))
        assert answer.refusal is Refusal.INVALID
        assert answer.detail.startswith(f"{name}: token 1000 ")

    @pytest.mark.parametrize(
        "fields", [{"output": (1,) * 4}, {"output": (1,) * 5}, {"output": (1,), "n": 2}]
    )
    def test_output_with_which_no_choice_can_go_on(self, intake, fields):
        answer = intake.submit(0, submission(5, **fields))
        assert answer.refusal is Refusal.INVALID
        assert answer.detail.startswith("output:")

    def test_longer_than_can_ever_fit(self, intake):
        assert refusal(intake, 1, (1,) * 10, max_tokens=4086) is None
        assert refusal(intake, 2, (1,) * 10, max_tokens=4087) is Refusal.TOO_LONG

    def test_more_choices_than_seats_and_waiting_places(self, intake):
        assert refusal(intake, 1, n=13) is Refusal.QUEUE_FULL
        assert refusal(intake, 1, n=12) is None

    def test_full_until_something_ends(self, intake):
        for handle in range(12):
            assert refusal(intake, handle) is None
        assert refusal(intake, 12) is Refusal.QUEUE_FULL
        intake.end([SequenceKey(0, 3)])
        assert refusal(intake, 12) is None
        assert refusal(intake, 13) is Refusal.QUEUE_FULL

    def test_draining(self, intake):
        refusal(intake, 1)
        intake.close()
        assert refusal(intake, 2) is Refusal.DRAINING
        assert intake.num_open == 1

    def test_handing_over(self, intake):
        """What was accepted before is handed over as well."""
        refusal(intake, 1)
        intake.hand_over()
        assert refusal(intake, 2) is Refusal.DRAINING
        drained = intake.drain()
        assert drained.hand_over and len(drained.arrivals) == 1

    @pytest.mark.parametrize("handle", [3, 4, 5, 6])
    def test_a_handle_that_is_open_on_this_stream(self, intake, handle):
        refusal(intake, 5, n=2)
        assert refusal(intake, handle, n=4) is Refusal.INVALID
        assert refusal(intake, handle, n=4, origin=1) is None

    def test_a_refused_submission_leaves_no_trace(self, intake):
        refusal(intake, 1, (1000,))
        refusal(intake, 2, n=13)
        assert intake.drain() == Drained()
        assert intake.num_open == 0 and intake.open_keys() == []


class TestCancel:
    def test_comes_out_with_an_arrival_that_was_not_handed_over_yet(self, intake):
        refusal(intake, 1, n=2)
        intake.cancel(0, [2])
        drained = intake.drain()
        assert len(drained.arrivals) == 2
        assert drained.cancelled == (SequenceKey(0, 2),)

    def test_of_unknown_handles_is_no_news(self, intake):
        refusal(intake, 1)
        intake.drain()
        intake.cancel(0, [2])
        intake.cancel(9, [1])
        assert intake.drain() == Drained()

    def test_of_what_has_ended_is_no_news(self, intake):
        refusal(intake, 1)
        intake.end([SequenceKey(0, 1)])
        intake.drain()
        intake.cancel(0, [1])
        assert intake.drain().cancelled == ()

    def test_that_came_too_late_does_not_hit_the_next_user_of_the_handle(self, intake):
        refusal(intake, 1)
        intake.drain()
        intake.cancel(0, [1])
        intake.end([SequenceKey(0, 1)])
        assert refusal(intake, 1) is None
        assert intake.drain().cancelled == ()


class TestLeave:
    def test_cancels_all_of_that_stream_only(self, intake):
        refusal(intake, 1, n=2, origin=1)
        refusal(intake, 1, origin=2)
        intake.leave(1)
        drained = intake.drain()
        assert drained.left == {1}
        assert set(drained.cancelled) == {SequenceKey(1, 1), SequenceKey(1, 2)}
        assert intake.open_keys() == [SequenceKey(2, 1)]

    def test_keeps_places_taken_until_the_sequences_have_ended(self, intake):
        """They still hold seats and blocks."""
        refusal(intake, 1, n=2, origin=1)
        intake.leave(1)
        assert intake.num_open == 2
        intake.end(intake.drain().cancelled)
        assert intake.num_open == 0

    def test_of_a_stream_without_sequences_is_no_news(self, intake):
        intake.leave(1)
        assert intake.drain() == Drained()


class TestControls:
    def test_newest_version_wins(self, intake):
        intake.set_controls(Controls(version=2, max_sequences=2))
        intake.set_controls(Controls(version=1, max_sequences=1))
        assert intake.drain().controls == Controls(version=2, max_sequences=2)

    def test_seats_beyond_those_of_the_replica_are_not_given_away(self, intake):
        intake.set_controls(Controls(version=1, max_sequences=99))
        controls = intake.drain().controls
        assert controls is not None and controls.max_sequences == 4


@pytest.mark.parametrize(
    "event",
    [
        lambda intake: intake.submit(0, submission(2)),
        lambda intake: intake.cancel(0, [1]),
        lambda intake: intake.leave(0),
        lambda intake: intake.set_controls(Controls(version=1)),
        lambda intake: intake.hand_over(),
        lambda intake: intake.stop(),
    ],
    ids=["submit", "cancel", "leave", "set_controls", "hand_over", "stop"],
)
def test_every_event_wakes_the_sleeper(intake, event):
    refusal(intake, 1)
    intake.drain()
    woken = threading.Event()

    def sleep() -> None:
        intake.wait()
        woken.set()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    assert not woken.is_set()
    event(intake)
    wait_until(woken.is_set)
    thread.join()


def test_an_event_before_the_wait_is_not_lost(intake):
    refusal(intake, 1)
    intake.wait()


def test_wait_gives_up_after_its_timeout(intake):
    before = time.monotonic()
    intake.wait(0.01)
    assert time.monotonic() - before >= 0.005


def test_bounds_hold_under_threads(intake):
    """The count of open sequences is checked and raised under one lock."""
    accepted: list[SequenceKey] = []

    def bring(origin: int) -> None:
        for handle in range(50):
            if refusal(intake, handle, origin=origin) is None:
                accepted.append(SequenceKey(origin, handle))

    threads = [threading.Thread(target=bring, args=(origin,)) for origin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accepted) == intake.num_open == 12
    assert {arrival.key for arrival in intake.drain().arrivals} == set(accepted)
