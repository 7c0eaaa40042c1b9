from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.protocol import LoadReport, ReplicaInfo
from chairlift.router.placement import (
    ReplicaView,
    candidates,
    max_sequence_tokens,
    retry_after_s,
)
from support.engines import replica_info

STALE = 5.0


def view(name: str, *, age: float | None = 0.1, ready: bool = True, **facts) -> ReplicaView:
    load = {field: facts.pop(field) for field in ("running", "waiting", "waiting_tokens")
            if field in facts}  # fmt: skip
    report = None if age is None else LoadReport(**load)
    return ReplicaView(name, ready, replica_info(), report, age, **facts)


def order(*views: ReplicaView, turn: int = 0) -> list[str]:
    return [each.replica_id for each in candidates(views, turn, STALE)]


def test_the_least_loaded_goes_first():
    assert order(view("a", running=3), view("b", running=1), view("c", running=2)) == list("bca")


def test_uncomputed_prompts_weigh_more_than_seats():
    assert order(view("a", waiting=1, waiting_tokens=4000), view("b", running=8)) == ["b", "a"]


def test_what_was_sent_and_is_in_no_report_counts():
    assert order(view("a", sent_sequences=1, sent_tokens=10), view("b")) == ["b", "a"]


def test_equals_take_turns():
    views = [view(name) for name in "cab"]
    firsts = [order(*views, turn=turn)[0] for turn in range(6)]
    assert firsts == list("abcabc")


def test_a_stale_report_is_unknown_and_not_idle():
    assert order(view("old", age=9.0), view("busy", running=30)) == ["busy"]
    assert order(view("mute", age=None), view("busy", running=30)) == ["busy"]


def test_stale_replicas_are_better_than_none():
    """Guards against old reports that look idle: what we sent ourselves is all that counts."""
    views = [view("a", age=9.0, sent_tokens=5), view("b", age=None), view("c", age=7.0, running=9)]
    assert order(*views) == ["b", "c", "a"]


def test_replicas_that_are_not_ready_are_no_candidates():
    assert order(view("a", ready=False), view("b", running=9)) == ["b"]
    assert order(view("a", ready=False)) == []


views_of_one_moment = st.lists(
    st.builds(
        ReplicaView,
        replica_id=st.text("abcdef", min_size=1, max_size=3),
        ready=st.booleans(),
        info=st.none(),
        load=st.builds(LoadReport, running=st.integers(0, 5), waiting_tokens=st.integers(0, 900)),
        load_age_s=st.floats(0, 10),
        sent_tokens=st.integers(0, 100),
    ),
    unique_by=lambda each: each.replica_id,
    max_size=6,
)


@given(views_of_one_moment, st.integers(0, 20))
def test_candidates_are_ready_and_each_is_named_once(views, turn):
    chosen = candidates(views, turn, STALE)
    assert len({each.replica_id for each in chosen}) == len(chosen)
    assert all(each.ready for each in chosen)
    assert bool(chosen) == any(each.ready for each in views)
    assert chosen == candidates(list(reversed(views)), turn, STALE)


def test_retry_after_is_the_shortest_queue_over_its_speed():
    slow = view("a", waiting_tokens=9000, tokens_per_s=100.0)
    quick = view("b", waiting_tokens=8000, tokens_per_s=1000.0)
    assert retry_after_s([slow, quick]) == 8.0


def test_retry_after_is_bounded_and_has_a_value_without_measurements():
    assert retry_after_s([]) == 1.0
    assert retry_after_s([view("a", waiting_tokens=5, tokens_per_s=1000.0)]) == 1.0
    assert retry_after_s([view("a", waiting_tokens=10**9, tokens_per_s=1.0)]) == 60.0


def test_max_sequence_tokens_holds_for_every_ready_replica():
    def sized(name: str, size: int, ready: bool = True) -> ReplicaView:
        info: ReplicaInfo = replica_info(max_sequence_tokens=size)
        return ReplicaView(name, ready, info)

    assert max_sequence_tokens([sized("a", 900), sized("b", 800), sized("c", 1, False)]) == 800
    assert max_sequence_tokens([sized("c", 1, False)]) is None
