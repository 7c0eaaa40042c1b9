from __future__ import annotations

import io

import pytest
from rich.console import Console

from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.load_run import LoadRun
from chairlift.evaluation.loads import Load
from chairlift.evaluation.peers_report import (
    Figures,
    Run,
    figures_of,
    figures_table,
    ratio_table,
    ratios,
)
from chairlift.evaluation.records import RequestRecord


def record(start: float, *chunks: float) -> RequestRecord:
    tokens = len(chunks)
    return RequestRecord(start, start, chunks[-1], 3, tokens, chunks, 3, tokens)


def figures(speed: float, first: float = 1.0, failures: dict[str, int] | None = None) -> Figures:
    return Figures(
        output_tokens_per_s=speed,
        steady_tokens_per_s=None,
        first_token_mean=first,
        first_token_p50=first,
        first_token_p99=first,
        inter_token_mean=0.1,
        inter_token_p99=0.1,
        prompt_tokens=1,
        output_tokens=1,
        seconds=1.0,
        failures=failures or {},
        details={},
        client_cpu=0.0,
    )


def test_figures_are_those_of_the_records() -> None:
    load = Load("x", (Work(0.0, (1, 2, 3), 3),) * 2, 2)
    run = LoadRun(load, (record(0.0, 1.0, 2.0, 3.0), record(0.0, 2.0, 4.0)), 0.25)
    found = figures_of(run)
    assert found.output_tokens_per_s == 5 / 4
    # Both are past their first tokens from 2 to 3: one token came.
    assert found.steady_tokens_per_s == 1.0
    assert (found.first_token_mean, found.first_token_p50, found.first_token_p99) == (1.5, 1.0, 2.0)
    assert found.inter_token_mean == pytest.approx(4 / 3)
    assert (found.prompt_tokens, found.output_tokens, found.client_cpu) == (6, 5, 0.25)


def test_ratios_are_paired_by_round_and_above_1_where_the_first_is_better() -> None:
    runs = [
        Run("a", 0, "mine", figures(200.0, first=1.0)),
        Run("a", 0, "theirs", figures(100.0, first=3.0)),
        Run("a", 1, "theirs", figures(50.0, first=1.0)),
        Run("a", 1, "mine", figures(300.0, first=2.0)),
        Run("a", 2, "mine", figures(300.0)),
        Run("a", 2, "theirs", figures(900.0, failures={"timeout": 1})),
    ]
    found = {ratio.figure: ratio for ratio in ratios(runs, ["mine", "theirs"])}
    assert found["output_tokens_per_s"].values == (2.0, 6.0)
    assert found["output_tokens_per_s"].median == 4.0
    assert found["first_token_mean"].values == (3.0, 0.5)
    assert "steady_tokens_per_s" not in found  # nobody measured it


def test_tables_show_medians_and_ranges() -> None:
    runs = [
        Run("a", number, target, figures(speed))
        for number in range(3)
        for target, speed in (("mine", 300.0 + number), ("theirs", 100.0))
    ]
    screen = io.StringIO()
    console = Console(width=120, file=screen)
    console.print(figures_table(runs, "a", ["mine", "theirs"]))
    console.print(ratio_table(ratios(runs, ["mine", "theirs"]), "a", "mine"))
    assert "301.0" in screen.getvalue()
    assert "3.01 (3.00–3.02)" in screen.getvalue()
