from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chairlift.evaluation import loads, peers
from support.openai_server import ScriptedServer, serving, tokens


@pytest.fixture(autouse=True)
def small_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = loads._Shape(requests=5, prompt="constant:4", output="constant:3", in_flight=2)
    monkeypatch.setattr(loads, "_CLOSED", {"a": shape, "b": shape})
    monkeypatch.setattr(loads, "_OPEN_REQUESTS", 4)


def prompts(server: ScriptedServer) -> list[list[int]]:
    """What it was asked, in a fixed order; without the warm-up."""
    warm_up = 64, 16
    asked = [(body["prompt"], body["max_tokens"]) for body in server.bodies]
    return sorted(prompt for prompt, output in asked if (len(prompt), output) != warm_up)


def run(tmp_path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "report.json"
    code = peers.main([*flags, "--json", str(file)])
    return code, json.loads(file.read_text())


def test_every_target_gets_the_same_requests_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = ScriptedServer(), ScriptedServer()
    with serving(one) as first, serving(other) as second:
        targets = ["--target", f"mine={first}", "--target", f"theirs={second}/v1,named"]
        code, report = run(tmp_path, *targets, "--load", "a", "b", "--rounds", "2")
    assert code == 0
    assert prompts(one) == prompts(other)
    assert len({tuple(prompt) for prompt in prompts(one)}) == 2 * 2 * 5  # loads, rounds, requests
    assert {body["model"] for body in one.bodies} == {"scripted"}
    assert {body["model"] for body in other.bodies} == {"named"}
    order = [(each["load"], each["round"], each["target"]) for each in report["runs"]]
    assert order[:4] == [("a", 0, "mine"), ("a", 0, "theirs"), ("a", 1, "theirs"), ("a", 1, "mine")]
    figures = report["runs"][0]["figures"]
    assert (figures["output_tokens"], figures["prompt_tokens"], figures["failures"]) == (15, 20, {})
    speed = [
        each["values"]
        for each in report["ratios"]
        if (each["load"], each["figure"]) == ("b", "output_tokens_per_s")
    ]
    assert [len(values) for values in speed] == [2]
    output = capsys.readouterr().out
    assert "load a: medians of the rounds" in output
    assert "load b: mine is … times better than" in output


def test_open_loads_run_at_shares_of_what_the_first_target_can_serve(tmp_path: Path) -> None:
    server = ScriptedServer()
    with serving(server) as url:
        code, report = run(tmp_path, "--target", f"mine={url}", "--load", "d-code", "--rounds", "1")
    assert code == 0
    assert list(report["capacity"]) == ["code"]
    assert [each["load"] for each in report["runs"]] == ["d-code-50", "d-code-80", "d-code-95"]
    assert all(each["figures"]["steady_tokens_per_s"] is None for each in report["runs"])
    assert len(prompts(server)) == 4 * 4  # the capacity, too


def test_a_round_with_failures_is_reported_and_gives_no_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def short(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await tokens(request, body | {"max_tokens": 2})

    with serving(ScriptedServer()) as first, serving(ScriptedServer(short)) as second:
        targets = ["--target", f"mine={first}", "--target", f"theirs={second}"]
        code, report = run(tmp_path, *targets, "--load", "a", "--rounds", "1")
    assert code == 1
    assert report["runs"][1]["figures"]["failures"] == {"wrong_length": 5}
    assert report["ratios"] == []
    assert "5 × wrong_length: 2 output tokens of 3" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--target", "gone=http://127.0.0.1:9"]) == 2
    assert "gone: no server at http://127.0.0.1:9/v1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "http://a:1"], "write NAME=URL"),
        (["--target", "a=localhost:1"], "no address"),
        (["--target", "a=http://a:1,m,text"], "[,words]"),
        ([], "required: --target"),
    ],
)
def test_wrong_flags_are_explained(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.main(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_load_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main(["--target", "a=http://127.0.0.1:9", "--load", "z"]) == 2
    assert "no load 'z'" in capsys.readouterr().err
