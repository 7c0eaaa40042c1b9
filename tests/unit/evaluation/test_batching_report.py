from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.batching_comparison import Round, StudyPlan
from chairlift.evaluation.batching_report import print_report, report
from chairlift.evaluation.engine_run import EngineRun, Work

PLAN = StudyPlan("constant:1", "constant:1", seats=2, requests=4, rounds=1, rate=None, seed=0)
WORK = tuple(Work(0.0, (1,), output) for output in (9, 1, 9, 1))  # 18 steps against 10


def a_round(static_seconds: float, digest: str = "b") -> Round:
    continuous = EngineRun(
        batching=Batching.CONTINUOUS,
        seconds=10.0,
        steps=10,
        occupied=20,
        preemptions=0,
        output_tokens=20,
        first_token=(1.0, 2.0, 3.0, 4.0),
        latency=(9.0, 1.0, 10.0, 2.0),
        digests=("a", "b", "c", "d"),
    )
    static = replace(
        continuous,
        batching=Batching.STATIC,
        seconds=static_seconds,
        steps=18,
        digests=("a", digest, "c", "d"),
    )
    ordered = replace(continuous, batching=Batching.STATIC_SORTED)
    return Round(WORK, {run.batching: run for run in (continuous, static, ordered)})


def printed(fields: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    print_report({"model": "m", "threads": 1} | fields, to_stderr=False)
    return capsys.readouterr().out


def test_figures_by_mode(capsys: pytest.CaptureFixture[str]) -> None:
    fields = json.loads(json.dumps(report(PLAN, [a_round(16.0)])))
    static = fields["modes"]["static"]
    assert static["tokens_per_s"] == 1.25
    assert static["occupancy"] == 20 / 36
    assert static["latency"]["p95"] == 10.0
    assert fields["comparisons"][0]["median_ratio"] == 1.6
    assert (fields["claim_holds"], fields["sound"]) == (False, True)
    assert (fields["mean_prompt"], fields["mean_output"]) == (1.0, 5.0)
    output = printed(fields, capsys)
    assert "continuous / static: 1.60× (1.60); the lengths allow 1.80" in output
    assert "claim, at least 2×: fails" in output


def test_a_ratio_above_the_ceiling_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    fields = report(PLAN, [a_round(30.0)])
    assert (fields["claim_holds"], fields["sound"]) == (True, False)
    assert "above what the lengths allow" in printed(fields, capsys)


def test_tokens_that_depend_on_the_mode_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    fields = report(PLAN, [a_round(16.0), a_round(16.0, digest="other")])
    assert fields["same_tokens"] == 7 / 8
    assert "same tokens in every mode: 87.5%" in printed(fields, capsys)
