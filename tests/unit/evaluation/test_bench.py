from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation import bench
from chairlift.evaluation.bench_report import warnings
from chairlift.evaluation.records import RequestRecord, summarise
from support.openai_server import ScriptedServer, serving, tokens


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(flags))


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    fields = json.loads(capsys.readouterr().out)
    assert isinstance(fields, dict)
    return fields


def test_an_open_loop_run_reports_what_was_asked_and_what_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = ScriptedServer()
    with serving(server) as url:
        code = run(
            "--url", url, "--rate", "500", "--requests", "8", "--json", "-", "--records",
            "--prompt-lengths", "constant:5", "--output-lengths", "uniform:2,4",
        )  # fmt: skip
    fields = report(capsys)
    assert code == 0
    assert len(server.bodies) == 8
    assert all(len(body["prompt"]) == 5 for body in server.bodies)
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 8
    summary = fields["summary"]
    assert (summary["offered"], summary["completed"]) == (8, 8)
    assert summary["output_tokens"] == sum(body["max_tokens"] for body in server.bodies)
    assert summary["prompt_tokens"] == 40
    assert summary["right_length"] == 1.0
    assert summary["end_to_end"]["count"] == 8
    assert len(fields["records"]) == 8
    assert fields["settings"]["model"] == "scripted"
    assert fields["settings"]["loop"] == "open"


def test_equal_seeds_send_equal_requests(capsys: pytest.CaptureFixture[str]) -> None:
    sent = []
    for _ in range(2):
        server = ScriptedServer()
        with serving(server) as url:
            run("--url", url, "--rate", "500", "--requests", "4", "--seed", "3")
        sent.append(sorted(json.dumps(body) for body in server.bodies))
    assert sent[0] == sent[1]


def test_a_closed_loop_is_labelled_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedServer()) as url:
        assert run("--url", url, "--concurrency", "2", "--requests", "5", "--chat") == 0
    output = capsys.readouterr().out
    assert "loop=closed" in output
    assert "closed loop: arrivals wait for the server" in output.replace("\n", " ")


def test_a_trace_sets_times_and_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,client,prompt_tokens,output_tokens\n0,0,100,30\n10,0,60,20\n")
    server = ScriptedServer()
    with serving(server) as url:
        code = run(
            "--url", url, "--trace", str(trace), "--length-scale", "0.1",
            "--time-scale", "0.001", "--json", "-", "--records",
        )  # fmt: skip
    assert code == 0
    assert sorted((len(body["prompt"]), body["max_tokens"]) for body in server.bodies) == [
        (6, 2), (10, 3)
    ]  # fmt: skip
    intended = sorted(record["intended"] for record in report(capsys)["records"])
    assert intended == pytest.approx([0.0, 0.01])


def test_failures_are_reported_and_do_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def every_other(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.bodies) % 2:
            return web.json_response({"error": {"message": "queue is full"}}, status=429)
        return await tokens(request, body)

    server = ScriptedServer(every_other)
    file = tmp_path / "report.json"
    with serving(server) as url:
        code = run("--url", url, "--rate", "500", "--requests", "6", "--json", str(file))
    assert code == 0
    summary = json.loads(file.read_text())["summary"]
    assert (summary["completed"], summary["failures"]) == (3, {"http_429": 3})
    output = capsys.readouterr().out
    assert "3 / 6 (50.0%)" in output
    assert "3 × http_429: queue is full" in output


def test_a_duration_bounds_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedServer()) as url:
        flags = ["--rate", "100", "--arrivals", "constant", "--duration", "0.095"]
        assert run("--url", url, *flags, "--json", "-") == 0
    assert report(capsys)["summary"]["offered"] == 10


def test_nothing_completed_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503, text="[bold]closed[/bold]")

    with serving(ScriptedServer(refuse)) as url:
        assert run("--url", url, "--rate", "500", "--requests", "2") == 1
    assert "[bold]closed[/bold]" in capsys.readouterr().out


def test_no_server_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedServer()) as url:
        pass
    assert run("--url", url, "--rate", "1") == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and url in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--rate", "1", "--url", "here"], "no address"),
        (["--rate", "1", "--arrivals", "burst"], "arrivals 'burst'"),
        (["--rate", "1", "--prompt-lengths", "64"], "prompt lengths '64'"),
        (["--rate", "1", "--time-scale", "2"], "--time-scale does not go with --rate"),
        (["--concurrency", "1", "--arrivals", "poisson"], "--arrivals does not go with"),
        (["--trace", "x", "--output-lengths", "constant:1"], "--output-lengths does not go with"),
        (["--trace", "/nowhere/at/all"], "cannot read the trace"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*flags)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "flags", [[], ["--rate", "0"], ["--rate", "1", "--concurrency", "1"], ["--concurrency", "x"]]
)
def test_a_load_that_makes_no_sense_ends_with_the_usage(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*flags)
    assert caught.value.code == 2


def test_a_lagging_generator_is_called_out() -> None:
    record = RequestRecord(
        intended=0.0, sent=0.02, ended=2.0, asked_prompt=1, asked_output=1,
        chunks=(1.0,), output_tokens=1,
    )  # fmt: skip
    assert any("lag" in note for note in warnings(summarise([record]), closed=False))
