from dataclasses import replace

import pytest

from chairlift.cluster.capacity import (
    Question,
    Step,
    Targets,
    Wishes,
    choose_degree,
    kv_room,
    make_plan,
    step_s,
    wait_share,
)
from chairlift.cluster.capacity_devices import DEVICES, Device, Efficiency, efficiencies
from chairlift.cluster.capacity_model import Lengths, Load, given_figures
from chairlift.cluster.errors import ConfigError

LLAMA_8B = given_figures(8.03e9, "bfloat16", (32, 32, 8, 128), 2.0)
LLAMA_70B = given_figures(70.6e9, "bfloat16", (80, 64, 8, 128), 2.0)
H100 = DEVICES["h100"]
PERFECT = Efficiency(1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
LOAD = Load(20, Lengths(1000, 3000), Lengths(300, 900))
QUESTION = Question(LLAMA_8B, H100, LOAD, Targets(1.0, 0.05), Wishes(2048, 2 * 1024**3))
EXPECTED = efficiencies(H100).expected


def asked(**changes: object) -> Question:
    return replace(QUESTION, **changes)


def test_a_perfect_step_takes_what_the_slower_of_memory_and_multipliers_takes():
    weights, kv = 8.03e9 * 2, 131_072
    assert LLAMA_8B.kv_bytes() == kv
    few = step_s(LLAMA_8B, H100, 1, PERFECT, Step(1, 500))
    assert few == pytest.approx((weights + 500 * kv) / 3350e9)
    prompts = step_s(LLAMA_8B, H100, 1, PERFECT, Step(0, 0, 2048, 2048))
    attention = 4 * 32 * 32 * 128 * 2048 * 1024
    assert prompts == pytest.approx((2 * 8.03e9 * 2048 + attention) / 989e12)


def test_without_overlap_a_step_takes_both_and_its_overhead():
    apart = replace(PERFECT, overlap=0.0, overhead_s=0.001)
    step = Step(64, 500)
    both = step_s(LLAMA_8B, H100, 1, apart, step)
    flops = LLAMA_8B.flops(64, 0) + LLAMA_8B.attention_flops(64 * 500)
    memory = step_s(LLAMA_8B, H100, 1, PERFECT, step)
    assert both == pytest.approx(memory + flops / 989e12 + 0.001)


def test_ranks_share_the_work_and_pay_for_their_sums():
    halves = step_s(LLAMA_8B, H100, 2, PERFECT, Step(1, 500))
    sums = 2 * 32 * (0.5 * 2 * LLAMA_8B.hidden_bytes / 450e9)
    assert halves == pytest.approx(step_s(LLAMA_8B, H100, 1, PERFECT, Step(1, 500)) / 2 + sums)


def test_more_ranks_than_kv_heads_hold_some_twice():
    assert LLAMA_8B.kv_bytes(16) == 2 * LLAMA_8B.kv_bytes(8) == 2 * LLAMA_8B.kv_bytes(1)


def test_weights_that_do_not_fit_ask_for_more_devices():
    assert choose_degree(QUESTION, EXPECTED, (1, 2, 4)) == 1
    large = asked(model=LLAMA_70B)
    assert kv_room(LLAMA_70B, H100, 1, 0) < 0
    assert choose_degree(large, EXPECTED, (1, 2, 4)) == 2
    hurried = asked(model=LLAMA_70B, targets=Targets(1.0, 0.02))
    assert choose_degree(hurried, EXPECTED, (1, 2, 4)) == 4


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model": LLAMA_70B, "device": DEVICES["l4"]}, "leave 0.00 GB for a KV cache"),
        ({"targets": Targets(1.0, 0.001)}, "with nobody else there, and --per-token is 1 ms"),
    ],
)
def test_what_no_degree_can_do_is_refused_with_the_reason(changes, fault):
    with pytest.raises(ConfigError, match=fault):
        choose_degree(asked(**changes), EXPECTED, (1, 2, 4))


def test_seats_are_bounded_by_the_cache_the_budget_and_the_time_per_token():
    free = make_plan(asked(targets=Targets(9.0, 9.0)), 1, EXPECTED)
    assert free.seats == free.kv_seats < 2048 / (1 + 1000 / 300)
    small = make_plan(asked(wishes=Wishes(256, 0), targets=Targets(9.0, 9.0)), 1, EXPECTED)
    assert small.seats == int(256 / (1 + 1000 / 300))
    quick = make_plan(asked(targets=Targets(9.0, 0.03)), 1, EXPECTED)
    assert quick.seats < free.seats
    assert quick.full_s <= 0.03


def test_targets_that_are_out_of_reach_are_missed_and_not_hidden():
    plan = make_plan(asked(targets=Targets(1.0, 0.001)), 1, EXPECTED)
    assert not plan.meets
    assert not make_plan(asked(targets=Targets(0.01, 0.05)), 1, EXPECTED).meets
    assert make_plan(QUESTION, 1, EXPECTED).meets


def test_a_prefix_that_all_share_is_held_and_computed_once():
    shared = replace(LOAD, shared=0.8)
    plan, alone = make_plan(asked(load=shared), 1, EXPECTED), make_plan(QUESTION, 1, EXPECTED)
    assert plan.kv_seats > 1.5 * alone.kv_seats
    assert plan.prompt_s < alone.prompt_s
    assert plan.tokens_per_s > alone.tokens_per_s


def test_as_many_sequences_run_as_come_in_their_time():
    plan = make_plan(QUESTION, 1, EXPECTED)
    ended = plan.running / (300 * plan.load_s) * plan.at_load
    assert ended == pytest.approx(20, rel=1e-6)
    assert plan.running < 0.8 * plan.seats


def test_spares_and_head_room_are_on_top():
    lean = make_plan(asked(wishes=Wishes(2048, 0, headroom=0.0, spares=0)), 1, EXPECTED)
    safe = make_plan(asked(wishes=Wishes(2048, 0, headroom=0.5, spares=2)), 1, EXPECTED)
    assert lean.replicas == lean.at_load
    assert safe.replicas == safe.at_load + 2
    assert safe.at_load >= lean.at_load


def test_bursts_need_more_seats_where_they_are_few():
    few = Device("small", 20e9, 3350e9, H100.flops, 0, "")
    tight = asked(
        device=few,
        targets=Targets(1.5, 0.05),
        wishes=Wishes(2048, 2 * 1024**3, headroom=0.0),
    )
    burst = replace(tight, load=replace(LOAD, burstiness=6.0))
    assert make_plan(burst, 1, EXPECTED).at_load > make_plan(tight, 1, EXPECTED).at_load


def test_cost_is_that_of_all_replicas_over_what_they_put_out():
    priced = asked(wishes=Wishes(2048, 0, price=2.0))
    plan = make_plan(priced, 2, EXPECTED)
    assert plan.per_hour == 2.0 * 2 * plan.replicas
    assert plan.per_million == pytest.approx(1e6 * plan.per_hour / (3600 * 20 * 300))
    assert make_plan(QUESTION, 1, EXPECTED).per_hour is None


def test_a_load_that_nobody_can_serve_is_refused():
    with pytest.raises(ConfigError, match="replicas of"):
        make_plan(asked(load=replace(LOAD, rate=1e7)), 1, EXPECTED)


@pytest.mark.parametrize(
    ("servers", "offered", "share"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (1, 1.0, 1.0), (3, 4.0, 1.0)]
)
def test_the_share_that_waits_is_erlangs(servers, offered, share):
    assert wait_share(servers, offered, 0.0, 1.0) == pytest.approx(share)


def test_few_wait_for_long():
    assert wait_share(2, 1.0, 2.0, 1.0) == pytest.approx(0.1353353 / 3, rel=1e-5)
    assert wait_share(2, 1.0, 2.0, 2.0) > wait_share(2, 1.0, 2.0, 1.0)


def test_a_given_efficiency_holds_for_all_three_shares():
    cases = efficiencies(H100, 0.5)
    assert cases.expected.memory == cases.expected.compute == cases.expected.attention == 0.5
    assert cases.worst.memory == pytest.approx(0.4)
    assert efficiencies(H100, 0.95).best.memory == 1.0
