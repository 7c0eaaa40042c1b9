"""Each source of a plan becomes the same requests for every arm, and other ones in each round."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_plan import Plan
from chairlift.evaluation.study_work import Asked, draw
from support.study_plans import DRAWN, plan_of, workload

VOCAB_SIZE = 1000
ARENA = "arrival_s,client,prompt_tokens,output_tokens\n" + "".join(
    f"{10 + 2 * i},{i % 3},{10 + i},{20 + i}\n" for i in range(12)
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{i:02}.0000000,{10 + i},{5 + i}\n" for i in range(20)
)


def traced(folder: Path, text: str, name: str = "trace.csv", **fields) -> Plan:
    """A plan with that trace, which is written into the folder."""
    (folder / name).write_text(text)
    source = {
        "kind": "trace",
        "file": name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "begin": fields.pop("begin", 0),
    }
    return plan_of(workloads={"load": workload(source, **({"requests": 4} | fields))})


def drawn(plan: Plan, number: int = 0, traces: Path | None = None) -> tuple[Asked, ...]:
    return draw(plan, "load", number, VOCAB_SIZE, traces)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading tokens that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_rounds_take_consecutive_pieces_whose_times_begin_at_nought(tmp_path: Path) -> None:
    plan = traced(tmp_path, ARENA, begin=1)
    first, second = (drawn(plan, number, tmp_path) for number in range(2))
    assert [len(each.prompt) for each in first] == [11, 12, 13, 14]
    assert [len(each.prompt) for each in second] == [15, 16, 17, 18]
    assert [each.output for each in first] == [21, 22, 23, 24]
    assert [each.at_s for each in second] == [0.0, 2.0, 4.0, 6.0]
    assert [each.tenant for each in first] == ["client_1", "client_2", "client_0", "client_1"]
    assert [each.number for each in second] == [0, 1, 2, 3]


def test_a_round_past_the_end_of_a_trace_is_an_error(tmp_path: Path) -> None:
    plan = traced(tmp_path, ARENA, requests=5)
    with pytest.raises(ConfigError, match="round 2 takes requests 10 to 14, and there are 12"):
        drawn(plan, 2, tmp_path)


def test_a_trace_of_another_hash_is_refused_with_both_hashes(tmp_path: Path) -> None:
    plan = traced(tmp_path, ARENA)
    wanted = hashlib.sha256(ARENA.encode()).hexdigest()
    (tmp_path / "trace.csv").write_text(ARENA + "99,1,1,1\n")
    found = hashlib.sha256((tmp_path / "trace.csv").read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=f"{found}.*{wanted}"):
        drawn(plan, 0, tmp_path)


def test_a_trace_needs_a_folder_and_a_file(tmp_path: Path) -> None:
    plan = traced(tmp_path, ARENA)
    with pytest.raises(ConfigError, match="in which folder"):
        drawn(plan)
    with pytest.raises(ConfigError, match="cannot read"):
        drawn(plan, 0, tmp_path / "elsewhere")


def test_lengths_and_times_are_scaled_and_cut_to_the_limits(tmp_path: Path) -> None:
    scale = {"prompt": 2.0, "output": 0.5, "time": 0.25}
    plan = traced(tmp_path, ARENA, scale=scale, limits={"prompt": 24, "output": 11})
    asked = drawn(plan, 0, tmp_path)
    assert [len(each.prompt) for each in asked] == [20, 22, 24, 24]
    assert [each.output for each in asked] == [10, 10, 11, 11]
    assert [each.at_s for each in asked] == [0.0, 0.5, 1.0, 1.5]


def test_traces_without_tenants_get_the_same_eight_by_number(tmp_path: Path) -> None:
    whole = drawn(traced(tmp_path, AZURE, requests=20), 0, tmp_path)
    later = drawn(traced(tmp_path, AZURE, begin=10, requests=10), 0, tmp_path)
    assert {each.tenant for each in whole} <= {f"tenant_{i}" for i in range(1, 9)}
    assert [each.tenant for each in whole[10:]] == [each.tenant for each in later]


def test_all_are_there_at_the_start_and_leave_when_the_workload_says_so() -> None:
    plan = plan_of(workloads={"load": workload(together=True, gives_up_after_s=2.5)})
    asked = drawn(plan)
    assert {each.at_s for each in asked} == {0.0}
    assert {each.gives_up_after_s for each in asked} == {2.5}


def test_mooncake_blocks_are_prefixes_in_common_scaled_with_the_prompts(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1200, "output_length": 6, "hash_ids": [7, 8, 9]},
        {"timestamp": 9, "input_length": 1500, "output_length": 6, "hash_ids": [7, 8, 3]},
        {"timestamp": 9, "input_length": 600, "output_length": 6, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 600, "output_length": 6, "hash_ids": [7, 4]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    plan = traced(tmp_path, text, "trace.jsonl", scale={"prompt": 1 / 32})
    one, other, alone, late = (each.prompt for each in drawn(plan, 0, tmp_path))
    assert (len(one), len(other)) == (38, 47)
    assert common(one, other) == 32
    assert common(one, late) == 16
    assert common(one, alone) == 0


def test_drawn_requests_follow_from_plan_and_round_alone() -> None:
    plan = plan_of()
    assert drawn(plan) == drawn(plan)
    assert drawn(plan) != drawn(plan, 1)
    assert drawn(plan) != drawn(plan_of(seed=2))


def test_tenants_are_drawn_by_their_shares() -> None:
    source = DRAWN | {"tenants": {"few": 1.0, "many": 9.0}}
    plan = plan_of(workloads={"load": workload(source, requests=400)})
    counts = Counter(each.tenant for each in drawn(plan))
    assert 20 <= counts["few"] <= 60


def test_conversations_ask_again_with_all_that_was_said_before() -> None:
    source = {
        "kind": "conversations",
        "rate": 0.5,
        "turns": 3,
        "think_s": 1.0,
        "system": 5,
        "question": "uniform:3,6",
        "answer": "uniform:2,5",
    }
    plan = plan_of(workloads={"load": workload(source, requests=30)})
    asked = drawn(plan)
    assert len(asked) == 30
    assert [each.at_s for each in asked] == sorted(each.at_s for each in asked)
    assert len({each.prompt[:5] for each in asked}) == 1
    by_begin: dict[tuple[int, ...], list[Asked]] = {}
    for each in asked:
        by_begin.setdefault(each.prompt[:8], []).append(each)
    assert max(map(len, by_begin.values())) == 3
    for turns in by_begin.values():
        for before, after in pairwise(turns):
            assert after.prompt[: len(before.prompt)] == before.prompt
            assert len(after.prompt) >= len(before.prompt) + before.output + 3
            assert after.at_s >= before.at_s + 1.0 + (before.output - 1) * 0.1
            assert after.tenant == before.tenant


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("long_among_short", {10: 57, 64: 3}),
        ("identical", {10: 60}),
        ("flood", {10: 60}),
        ("cold_under_hot", {10: 60}),
    ],
)
def test_adversaries_have_the_lengths_that_they_say(name: str, counts: dict[int, int]) -> None:
    source = {"kind": "adversary", "name": name, "rate": 5.0, "prompt": 10, "output": 4}
    asked = drawn(plan_of(workloads={"load": workload(source, requests=60)}))
    assert Counter(len(each.prompt) for each in asked) == counts
    assert {each.output for each in asked} == {4}


def test_a_flood_is_ten_times_as_much_and_hot_prompts_are_all_the_same() -> None:
    source = {"kind": "adversary", "name": "flood", "rate": 5.0, "prompt": 10, "output": 4}
    asked = drawn(plan_of(workloads={"load": workload(source, requests=280)}))
    assert 170 <= Counter(each.tenant for each in asked)["flood"] <= 230
    source["name"] = "cold_under_hot"
    asked = drawn(plan_of(workloads={"load": workload(source, requests=60)}))
    prompts = {name: {e.prompt for e in asked if e.tenant == name} for name in ("hot", "cold")}
    assert (len(prompts["hot"]), len(prompts["cold"])) == (1, 6)
