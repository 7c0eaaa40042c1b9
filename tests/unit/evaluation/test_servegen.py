"""Mixes of clients: rates, patterns and lengths are those that the file says."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from chairlift.evaluation.servegen import draw_arrivals, main, read_mix
from chairlift.evaluation.study_files import sha256_of
from chairlift.evaluation.study_work import draw
from support.study_plans import plan_of, workload

STEADY = {
    "trace": [[600, 2.0, 1.0, "Gamma", 1.0, 0.5], [1200, 0.5, 1.0, "Gamma", 1.0, 2.0]],
    "dataset": {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": {"3": 1.0}}},
}
BURSTY = {
    "trace": [[600, 1.0, 2.0, "Weibull", 0.5, 1.0], [1200, 0.0, 0.0, "", 0.0, 0.0]],
    "dataset": {"600": {"input_tokens": {"7": 1.0}, "output_tokens": {"1": 0.25, "9": 0.75}}},
}
MIX = json.dumps({"clients": {"1": STEADY, "2": BURSTY}})


def test_clients_keep_their_rates_patterns_and_lengths() -> None:
    arrivals = list(draw_arrivals(read_mix(MIX), "seed"))
    assert [each.at_s for each in arrivals] == sorted(each.at_s for each in arrivals)
    steady = [each for each in arrivals if each.client == "1"]
    bursty = [each for each in arrivals if each.client == "2"]
    assert sum(each.at_s < 600 for each in steady) == pytest.approx(1200, rel=0.1)
    assert sum(each.at_s >= 600 for each in steady) == pytest.approx(300, rel=0.25)
    assert max(each.at_s for each in bursty) < 600
    assert len(bursty) == pytest.approx(600, rel=0.25)
    gaps = [after.at_s - before.at_s for before, after in pairwise(bursty)]
    assert stdev(gaps) / fmean(gaps) == pytest.approx(5**0.5, rel=0.25)
    assert {each.lengths.prompt for each in steady} == {10, 20}
    assert {each.lengths.output for each in steady} == {3}
    assert fmean(each.lengths.output == 9 for each in bursty) == pytest.approx(0.75, abs=0.08)


def test_a_mix_draws_the_same_for_the_same_seed_and_begins_where_it_is_told() -> None:
    mix = read_mix(MIX)
    whole = list(draw_arrivals(mix, "seed"))
    later = list(draw_arrivals(mix, "seed", 300.0))
    assert list(draw_arrivals(mix, "seed")) == whole
    assert list(draw_arrivals(mix, "other")) != whole
    assert [each.lengths for each in later] == [e.lengths for e in whole if e.at_s >= 300.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "no clients"),
        (
            json.dumps({"clients": {"a": STEADY | {"dataset": {"0": {}}, "trace": [[0]]}}}),
            "client a",
        ),
        (
            json.dumps({"clients": {"b": STEADY | {"trace": [[0, 1.0, 1.0, "Zipf", 1.0, 1.0]]}}}),
            "client b: ValueError: window 0: a pattern 'Zipf'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_client(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_mix(text)


def test_rounds_of_a_study_take_one_piece_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    file.write_text(MIX)
    source = {"kind": "trace", "file": "mix.json", "sha256": sha256_of(file)}
    plan = plan_of(workloads={"load": workload(source, requests=10)})
    rounds = [draw(plan, "load", number, 1000, tmp_path) for number in range(2)]
    drawn = list(islice(draw_arrivals(read_mix(MIX), "1 load"), 20))
    lengths = [each.lengths.prompt for each in drawn]
    assert [len(each.prompt) for asked in rounds for each in asked] == lengths
    assert {each.tenant for each in rounds[0]} <= {"client_1", "client_2"}


def test_servegen_s_files_are_packed_into_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "0,1.0,1.0,Gamma,1.0,1.0\n600,2.0,1.0,Weibull,1.0,0.5\n1200,0.0,0.0,,0.0,0.0\n"
    lengths = {"0": {"input_tokens": "{5: 0.5, 6: 0.5}", "output_tokens": "{2: 1.0}"}}
    (tmp_path / "chunk-3-trace.csv").write_text(rows)
    (tmp_path / "chunk-3-dataset.json").write_text(json.dumps(lengths))
    assert main([str(tmp_path), "--begin", "600"]) == 0
    arrivals = list(draw_arrivals(read_mix(capsys.readouterr().out), "seed"))
    assert len(arrivals) == pytest.approx(1200, rel=0.1)
    assert arrivals[-1].at_s < 600
    assert {each.lengths.prompt for each in arrivals} == {5, 6}
    assert main([str(tmp_path), "--begin", "1200"]) == 2
    assert "no client sends anything" in capsys.readouterr().err
