import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.protocol import (
    LoadReport,
    ReplicaInfo,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.router.placement import (
    Need,
    Placement,
    ReplicaView,
    credits,
    fits_nowhere,
    has_place_in_line,
    max_sequence_tokens,
    retry_after_s,
)
from chairlift.router.sent import Unstarted
from support.engines import replica_info

STALE = 5.0
SEATS = 4
POLICIES = ["prefix-aware", "least-loaded", "power-of-two", "round-robin"]


def view(name: str, *, age: float | None = 0.1, ready: bool = True, **facts) -> ReplicaView:
    """A replica with four seats; facts of its report and of the router's own, mixed."""
    own = {each: facts.pop(each) for each in list(facts) if each in ReplicaView.__slots__}
    report = None if age is None else LoadReport(**facts)
    return ReplicaView(name, ready, own.pop("info", replica_info()), report, age, **own)


def placement(policy: str = "prefix-aware", seed: int = 1, look_ahead: int = 2) -> Placement:
    rng = random.Random(seed)
    return Placement(policy, look_ahead=look_ahead, stale_after_s=STALE, random=rng)


SMALL = Need(10, 1, 20)


def sent_by(tenant: str, n: int = 1) -> Unstarted:
    unstarted = Unstarted()
    request = Request("r", (1,), SamplingParams(max_tokens=1), n=n, tenant=tenant)
    unstarted.add(Submission(1, request))
    return unstarted


def chosen(
    *views: ReplicaView, need: Need = SMALL, policy: str = "prefix-aware", **hits: int
) -> set[str | None]:
    """Whatever the rule picks, over many draws."""
    rule = placement(policy)
    return {rule.pick(views, need, lambda name: hits.get(name, 0)) for _ in range(50)}


def test_the_least_loaded_wins():
    for policy in ("prefix-aware", "least-loaded"):
        views = view("a", running=3), view("b", running=1), view("c", running=2)
        assert chosen(*views, policy=policy) == {"b"}


def test_of_two_random_ones_the_less_loaded_wins():
    views = view("a", running=3), view("b", running=1), view("c", running=2)
    assert chosen(*views, policy="power-of-two") == {"b", "c"}


def test_replicas_take_turns_with_round_robin():
    rule, views = placement("round-robin"), [view(name) for name in "cab"]
    assert [rule.pick(views, Need(1, 1, 2), lambda _: 0) for _ in range(5)] == list("abcab")
    assert rule.pick([view("b"), view("d")], Need(1, 1, 2), lambda _: 0) == "d"


def test_uncomputed_prompts_weigh_more_than_seats():
    busy, empty = view("a", waiting=1, waiting_tokens=4000), view("b", running=3)
    assert chosen(busy, empty) == {"b"}


def test_what_was_sent_and_is_in_no_report_counts():
    assert chosen(view("a", sent_sequences=1, sent_tokens=10, open_sequences=1), view("b")) == {"b"}


def test_equals_have_equal_chances():
    rule, views = placement(), [view(name) for name in "abc"]
    count = Counter(rule.pick(views, Need(5, 1, 9), lambda _: 0) for _ in range(600))
    assert set(count) == set("abc") and min(count.values()) > 150


def test_a_close_second_has_its_chance_and_a_clear_best_has_no_rival():
    close = view("a", tokens_per_s=100.0), view("b", tokens_per_s=110.0)
    assert chosen(*close, need=Need(500, 1, 600)) == {"a", "b"}
    clear = view("a", tokens_per_s=100.0), view("b", tokens_per_s=180.0)
    assert chosen(*clear, need=Need(500, 1, 600)) == {"b"}


def test_a_measured_rate_is_believed_within_bounds():
    """Guards against a replica that only decoded looking hopeless beside one that read prompts."""
    slow, fast = view("a", tokens_per_s=10.0), view("b", tokens_per_s=5000.0, running=2)
    assert chosen(slow, fast, need=Need(20, 1, 30)) == {"a"}


def test_a_cached_prefix_draws_until_the_line_there_is_worth_more():
    need = Need(400, 1, 500, names=tuple(range(100)))
    assert chosen(view("a", running=2), view("b"), need=need, a=90) == {"a"}
    longer_line = view("a", running=3, waiting_tokens=100)
    assert chosen(longer_line, view("b"), need=need, a=90) == {"b"}


def test_a_hit_is_no_reason_to_wait_for_a_seat_while_others_have_one():
    need = Need(4000, 1, 4050, names=tuple(range(1000)))
    assert chosen(view("a", running=SEATS), view("b", running=3), need=need, a=1000) == {"b"}


def test_who_waits_goes_where_most_seats_are_about_to_be_free():
    views = [
        view("a", running=SEATS, freeing=1, unstarted=sent_by("other", 1)),
        view("b", running=SEATS, freeing=3, waiting=1),
        view("c", running=SEATS),
    ]
    assert chosen(*views) == {"b"}
    assert chosen(views[0], views[2]) == {"a"}
    taken = replace(views[0], unstarted=sent_by(SMALL.tenant, 1))
    assert chosen(taken, replace(views[2], unstarted=sent_by(SMALL.tenant, 1))) == {"a", "c"}


def test_a_replica_whose_cache_is_full_is_avoided():
    full = view("a", running=1, blocks_used=1020, blocks_total=1024)
    roomy = view("b", running=1, blocks_used=20, blocks_total=1024)
    assert chosen(full, roomy, need=Need(40, 1, 60)) == {"b"}


def test_choices_go_together_where_there_are_seats_for_all():
    need = Need(5, 3, 9)
    assert chosen(view("a", running=2), view("b", running=1, waiting_tokens=900), need=need) == {
        "b"
    }
    assert chosen(view("a", running=2), need=need) == {"a"}


def test_a_replica_that_is_too_small_is_not_chosen():
    small = view("a", info=replica_info(max_sequence_tokens=100))
    assert chosen(small, view("b", running=3), need=Need(50, 1, 101)) == {"b"}
    assert chosen(small, need=Need(50, 1, 101)) == {None}


def test_a_stale_report_is_unknown_and_not_idle():
    assert chosen(view("old", age=9.0), view("busy", running=3)) == {"busy"}
    assert chosen(view("mute", age=None), view("busy", running=3)) == {"busy"}


def test_stale_replicas_are_better_than_none():
    """Guards against old reports that look idle: what we sent ourselves is all that counts."""
    old, mute = view("a", age=9.0, open_sequences=1), view("b", age=None)
    busy = view("busy", running=SEATS, waiting=2, unstarted=sent_by(SMALL.tenant, 2))
    assert chosen(old, mute, busy) == {"b"}
    assert chosen(old, replace(mute, open_sequences=3), busy, policy="least-loaded") == {"a"}


def test_replicas_that_cannot_take_anything_are_not_chosen():
    for policy in POLICIES:
        views = (
            view("a", ready=False),
            view("b", draining=True),
            view("c", full=True),
            view("d", age=None, info=None),
            view("e", running=SEATS, waiting=2, unstarted=sent_by(SMALL.tenant, 2)),
        )
        assert chosen(*views, policy=policy) == {None}
        assert chosen(*views, view("f", running=3), policy=policy) == {"f"}


def test_credits_are_the_free_seats():
    assert credits(view("a"), STALE) == SEATS
    assert credits(view("a", running=3), STALE) == 1
    assert credits(view("a", running=SEATS, waiting=1), STALE) == 0
    assert credits(view("a", running=1, sent_sequences=2), STALE) == 1
    assert credits(view("a", open_sequences=3), STALE) == 1


def test_credits_share_the_free_seats_among_routers():
    assert credits(view("a", routers=2), STALE) == 2
    assert credits(view("a", running=3, routers=2), STALE) == 1
    assert credits(view("a", running=SEATS, routers=2), STALE) == 0


def test_credits_without_news_are_a_share_of_the_seats_and_never_run_out_for_good():
    assert credits(view("a", age=9.0, running=9), STALE) == SEATS
    assert credits(view("a", age=9.0, routers=3, open_sequences=1), STALE) == 1
    assert credits(view("a", age=None, open_sequences=SEATS), STALE) == 0
    assert credits(view("a", age=9.0, routers=99), STALE) == 1


@given(st.integers(1, 40), st.integers(0, 50), st.integers(0, 20), st.integers(1, 6))
def test_routers_that_see_one_report_hardly_give_more_than_there_are_seats(
    seats, running, waiting, routers
):
    info = replica_info(max_sequences=seats)
    one = view("a", info=info, running=running, waiting=waiting, routers=routers)
    free = max(0, seats - running - waiting)
    given_now = routers * credits(one, STALE)
    assert given_now <= max(free, routers if free else 0)
    if free:
        assert given_now > 0


def test_in_a_line_each_tenant_has_its_own_few_places():
    def may_wait(need: Need = SMALL, tenant: str = "greedy", **facts) -> bool:
        full = view("a", running=SEATS, unstarted=sent_by("greedy", 2), **facts)
        return has_place_in_line(full, replace(need, tenant=tenant), 2, STALE)

    assert may_wait(waiting=1)  # nobody's line is that short
    assert not may_wait(waiting=2)
    assert may_wait(waiting=2, tenant="modest")
    assert may_wait(waiting=2, need=replace(SMALL, under_way=True))
    assert not may_wait(waiting=SEATS + 2, tenant="modest")
    assert not may_wait(waiting=1, full=True)
    assert not may_wait(age=9.0)
    assert not may_wait(waiting=1, sent_sequences=1)


views_of_one_moment = st.lists(
    st.builds(
        ReplicaView,
        replica_id=st.text("abcdef", min_size=1, max_size=3),
        ready=st.booleans(),
        info=st.sampled_from([None, replica_info(), replica_info(max_sequence_tokens=50)]),
        load=st.builds(LoadReport, running=st.integers(0, 5), waiting_tokens=st.integers(0, 900)),
        load_age_s=st.none() | st.floats(0, 10),
        sent_sequences=st.integers(0, 3),
        sent_tokens=st.integers(0, 100),
        tokens_per_s=st.none() | st.floats(1, 1e6),
        open_sequences=st.integers(3, 8),
    ),
    unique_by=lambda each: each.replica_id,
    max_size=6,
)


@given(views_of_one_moment, st.sampled_from(POLICIES), st.integers(0, 20))
def test_who_is_chosen_has_room_and_somebody_is_chosen_if_anybody_has(views, policy, seed):
    need = Need(30, 2, 60, names=(1, 2))
    able = {
        each.replica_id
        for each in views
        if (credits(each, STALE) or has_place_in_line(each, need, 2, STALE))
        and each.info
        and each.info.max_sequence_tokens >= 60
    }
    found = placement(policy, seed).pick(views, need, lambda _: 1)
    assert found in able if able else found is None
    assert found == placement(policy, seed).pick(views[::-1], need, lambda _: 1)


def test_an_unknown_policy_is_an_error():
    with pytest.raises(KeyError):
        placement("fastest")


def test_retry_after_is_what_waits_over_the_speed_of_all():
    slow = view("a", waiting_tokens=9000, tokens_per_s=500.0)
    quick = view("b", waiting_tokens=1000, sent_tokens=2000, tokens_per_s=1000.0)
    assert retry_after_s([slow, quick], 3000) == 10.0
    assert retry_after_s([slow, quick, view("c", ready=False, waiting_tokens=9**9)], 3000) == 10.0


def test_retry_after_is_bounded_and_has_a_value_without_measurements():
    assert retry_after_s([], 10**9) == 1.0
    assert retry_after_s([view("a", waiting_tokens=5, tokens_per_s=1000.0)], 0) == 1.0
    assert retry_after_s([view("a", waiting_tokens=10**9, tokens_per_s=1.0)], 0) == 60.0


def sized(name: str, size: int, ready: bool = True) -> ReplicaView:
    info: ReplicaInfo = replica_info(max_sequence_tokens=size)
    return ReplicaView(name, ready, info)


def test_max_sequence_tokens_holds_for_every_ready_replica():
    assert max_sequence_tokens([sized("a", 900), sized("b", 800), sized("c", 1, False)]) == 800
    assert max_sequence_tokens([sized("c", 1, False)]) is None


def test_a_sequence_fits_nowhere_only_if_some_replica_is_there_to_say_so():
    assert fits_nowhere([sized("a", 900), sized("b", 800)], 901)
    assert not fits_nowhere([sized("a", 900), sized("b", 800)], 900)
    assert not fits_nowhere([sized("a", 900, False)], 901)


NUM_SEATS, BLOCK, RATE = 16, 4, 2000.0


@dataclass
class FakeReplica:
    """Computes prompts one after the other, then decodes them all at once."""

    names: set[int] = field(default_factory=set)
    uncomputed: list[tuple[int, int]] = field(default_factory=list)
    decoding: list[int] = field(default_factory=list)
    got: int = 0

    def take(self, need: Need, num_output: int) -> None:
        hits = sum(name in self.names for name in need.names)
        self.names.update(need.names)
        self.uncomputed.append((need.num_tokens - hits * BLOCK, num_output))
        self.got += 1

    def step(self, budget: int = 200) -> None:
        """A tenth of a second."""
        self.decoding = [left - 1 for left in self.decoding if left > 1]
        while self.uncomputed and len(self.decoding) < NUM_SEATS:
            tokens, num_output = self.uncomputed[0]
            if tokens > budget:
                self.uncomputed[0] = tokens - budget, num_output
                break
            budget -= tokens
            self.decoding.append(num_output)
            del self.uncomputed[0]

    def view(self, name: str) -> ReplicaView:
        num = len(self.uncomputed) + len(self.decoding)
        tokens = sum(tokens for tokens, _ in self.uncomputed)
        load = LoadReport(
            running=min(num, NUM_SEATS),
            waiting=max(0, num - NUM_SEATS),
            waiting_tokens=tokens,
            blocks_total=10**6,
        )
        info = replica_info(max_sequences=NUM_SEATS, block_size=BLOCK)
        return ReplicaView(name, True, info, load, 0.1, tokens_per_s=RATE, open_sequences=num)


class Simulation:
    """Four replicas and one router; what finds no room waits in order."""

    def __init__(self) -> None:
        self.replicas = {name: FakeReplica() for name in "abcd"}
        self.rule = placement(seed=9)
        self.queue: list[tuple[Need, int]] = []
        self.went: list[str] = []

    def views(self) -> list[ReplicaView]:
        return [replica.view(name) for name, replica in self.replicas.items()]

    def step(self) -> None:
        while self.queue:
            need, num_output = self.queue[0]
            name = self.rule.pick(self.views(), need, self.hits(need))
            if name is None:
                break
            free = {each.replica_id: each.free_seats for each in self.views()}
            assert free[name] > 0 or max(free.values()) <= 0, "it waits, and another has a seat"
            self.replicas[name].take(need, num_output)
            self.went.append(name)
            del self.queue[0]
        assert not self.queue or max(each.free_seats for each in self.views()) <= 0
        for replica in self.replicas.values():
            replica.step()

    def hits(self, need: Need) -> Callable[[str], int]:
        return lambda name: sum(each in self.replicas[name].names for each in need.names)


def test_a_hot_prefix_does_not_pile_up():
    """200 requests share a system prompt of 800 tokens."""
    simulation, rng = Simulation(), random.Random(4)
    shared = tuple(range(200))
    for step in range(400):
        if step < 50:
            simulation.queue += [
                (Need(860, 1, 960, (*shared, *(rng.getrandbits(60) for _ in range(15)))), 40)
            ] * 4
        simulation.step()
    got = [replica.got for replica in simulation.replicas.values()]
    assert sum(got) == 200
    assert max(got) / min(got) <= 1.5


def test_a_conversation_goes_back_to_its_replica():
    """Eight conversations of ten turns each, on replicas that are not overloaded."""
    simulation, rng = Simulation(), random.Random(4)
    prompts: list[list[int]] = [[] for _ in range(8)]
    homes: list[list[str]] = [[] for _ in prompts]
    for _ in range(10):
        for prompt, home in zip(prompts, homes, strict=True):
            prompt.extend(rng.getrandbits(60) for _ in range(50))
            simulation.queue.append((Need(4 * len(prompt), 1, 4096, tuple(prompt)), 30))
            for _ in range(8):
                simulation.step()
            home.append(simulation.went[-1])
    returned = sum(home[0] == each for home in homes for each in home[1:])
    assert returned >= 0.95 * 8 * 9
    assert len({home[0] for home in homes}) > 1
