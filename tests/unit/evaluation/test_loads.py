from __future__ import annotations

from itertools import pairwise
from statistics import mean, median, pstdev

import pytest

from chairlift.evaluation.loads import (
    LOADS,
    Load,
    capacity_load,
    closed_load,
    expand,
    open_load,
    open_name,
    warm_up_load,
)

CLOSED = [name for name in LOADS if open_name(name) is None]


def prompts(load: Load) -> list[tuple[int, ...]]:
    return [one.prompt for one in load.work]


@pytest.mark.parametrize("name", CLOSED)
def test_a_load_follows_from_its_name_and_seed(name: str) -> None:
    assert closed_load(name, "0") == closed_load(name, "0")
    assert not {*prompts(closed_load(name, "0"))} & {*prompts(closed_load(name, "1"))}


def test_mixed_lengths_are_spread_around_their_medians() -> None:
    work = [one for seed in range(8) for one in closed_load("a", f"{seed}").work]
    assert len(work) == 8 * 64
    lengths, outputs = [len(one.prompt) for one in work], [one.output for one in work]
    assert median(lengths) == pytest.approx(96, rel=0.2)
    assert (min(lengths), max(lengths)) == (16, 512)
    assert median(outputs) == pytest.approx(64, rel=0.2)
    assert (min(outputs), max(outputs)) == (8, 256)


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "output", "in_flight"),
    [("b", 4, 96, 128, 1), ("c", 32, 64, 128, 32), ("e", 32, 2064, 64, 8)],
)
def test_the_other_closed_loads_have_constant_lengths(
    name: str, requests: int, prompt: int, output: int, in_flight: int
) -> None:
    load = closed_load(name, "0")
    assert load.in_flight == in_flight
    assert [(len(one.prompt), one.output) for one in load.work] == [(prompt, output)] * requests
    assert all(one.at_s == 0.0 for one in load.work)


def test_a_shared_prefix_is_the_same_in_one_round_and_another_in_the_next() -> None:
    first, second = (closed_load("e", seed) for seed in ("0", "1"))
    starts = {prompt[:2000] for prompt in prompts(first)}
    assert len(starts) == 1
    assert len({prompt[2000:] for prompt in prompts(first)}) == 32
    assert starts != {prompt[:2000] for prompt in prompts(second)}


def test_an_open_load_arrives_in_bursts_at_its_rate() -> None:
    loads = [open_load("d-conv-80", f"{seed}", rate=4.0) for seed in range(20)]
    assert all(load.in_flight is None for load in loads)
    gaps = [b.at_s - a.at_s for load in loads for a, b in pairwise(load.work)]
    assert mean(gaps) == pytest.approx(1 / 4, rel=0.2)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(2, rel=0.2)


def test_the_rate_changes_when_requests_arrive_and_nothing_else() -> None:
    slow, fast = (open_load("d-code-50", "0", rate) for rate in (1.0, 2.0))
    assert prompts(slow) == prompts(fast)
    assert [one.output for one in slow.work] == [one.output for one in fast.work]
    assert [one.at_s / 2 for one in slow.work] == pytest.approx([one.at_s for one in fast.work])


@pytest.mark.parametrize(("trace", "prompt", "output"), [("code", 254, 3.6), ("conv", 155, 27.7)])
def test_lengths_are_an_eighth_of_the_trace(trace: str, prompt: float, output: float) -> None:
    work = [one for seed in range(10) for one in capacity_load(trace, f"{seed}").work]
    assert mean(len(one.prompt) for one in work) == pytest.approx(prompt, rel=0.15)
    assert mean(one.output for one in work) == pytest.approx(output, rel=0.15)


def test_what_is_not_measured_shares_no_prompt_with_what_is() -> None:
    measured = {prompt[:16] for name in CLOSED for prompt in prompts(closed_load(name, "0"))}
    assert not measured & {prompt[:16] for prompt in prompts(warm_up_load("0"))}


def test_a_name_stands_for_all_loads_that_begin_with_it() -> None:
    assert expand(["b", "d-code"]) == ["b", "d-code-50", "d-code-80", "d-code-95"]
    assert len(expand(["d"])) == 6
    assert open_name("d-conv-95") == ("conv", 0.95)
    with pytest.raises(ValueError, match="no load 'f'"):
        expand(["f"])
