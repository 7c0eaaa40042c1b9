from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.evaluation.fit import fit, main
from chairlift.evaluation.lengths import Lengths
from chairlift.evaluation.traces import Arrival


def test_each_eighth_of_the_prompts_gets_its_own_outputs() -> None:
    arrivals = [Arrival(0.0, Lengths(prompt=i, output=1000 if i > 700 else i)) for i in range(800)]
    table = fit(arrivals)
    assert (table.prompt[0], table.prompt[-1]) == (0.0, 799.0)
    assert len(table.output) == 8
    assert (table.output[0][0], table.output[0][-1]) == (0.0, 99.0)
    assert (table.output[7][0], table.output[7][-1]) == (700.0, 1000.0)


def test_the_command_prints_a_table_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{i},0,{i + 1},5\n" for i in range(16))
    trace = tmp_path / "some.csv"
    trace.write_text("arrival_s,client,prompt_tokens,output_tokens\n" + rows)
    assert main([str(trace), "--source", "where it is from", "--licence", "CC0"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["requests"] == 16
    assert fields["mean_prompt"] == 8.5
    assert fields["licence"] == "CC0"
    assert fields["made_by"].startswith("python -m chairlift.evaluation.fit some.csv --source")
    assert len(fields["output"]) == 8


def test_too_short_a_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "some.csv"
    trace.write_text("arrival_s,client,prompt_tokens,output_tokens\n0,0,1,1\n")
    assert main([str(trace)]) == 1
    assert "too short" in capsys.readouterr().err
