import argparse
import socket

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.deployments import top
from support.figures import SCRIPT, cluster_figures, guard_figures
from support.figures_server import FakeHub, figures_server
from support.openai_server import ScriptedServer, serving


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    return top.run(parser.parse_args([*flags, "--once"]))


def test_once_prints_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    with figures_server() as url:
        assert run("--url", url) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    rows = {row.split("  ")[0].strip(): row.split() for row in text.splitlines()}
    assert rows["first token"][2:] == ["85.0", "ms", "240.0", "ms", "713.0", "ms", "1.00", "s"]
    assert rows["replica-1"][1:5] == ["live", "210.0", "ms", "29"]
    assert rows["replica-1"][7:] == ["71.8%", "1.2%", "4"]
    assert rows["replica-3"][1:] == ["NOT", "LIVE", *"–––––––"]
    assert rows[SCRIPT][1:] == ["–", "0.0%", "0.0", "–", "–", "–", "2", "50.0", "ms"]
    assert "98,765 started" in text and "0 lost: adds up" in text


def test_names_are_neither_markup_nor_commands_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = cluster_figures(queues={"[red]x\x1b[2J\ny": {"queued": 1, "oldest_s": 2.0}})
    with figures_server(FakeHub(figures)) as url:
        assert run("--url", url) == 0
    assert "[red]x[2J y" in capsys.readouterr().out


def test_a_cluster_that_knows_little_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures = cluster_figures(replicas={}, queues={}, models=[], oldest_waiting_s=None)
    figures["totals"] |= {"open": None, "balanced": None}
    with figures_server(FakeHub(figures)) as url:
        assert run("--url", url) == 0
    text = capsys.readouterr().out
    assert "oldest waiting –" in text and "– open + 0 lost: not known" in text


def shown(capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    with figures_server(FakeHub(cluster_figures(**changes))) as url:
        assert run("--url", url) == 0
    return capsys.readouterr().out


def test_the_guard_says_where_it_stands_why_and_what_it_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys)
    assert "Guard: act · rung 1 no_speculation · for 11 s" in text
    (row,) = (line.split() for line in text.splitlines() if line.startswith("kv_use"))
    assert row == ["kv_use", "0.970", "0.900", "capacity", "replica-1"]
    assert "unfairness" not in text  # it is calm
    assert (
        "11 s ago: up normal → no_speculation, for kv_use of replica-1 0.95 (threshold 0.9)" in text
    )


def test_what_is_not_as_usual_with_the_guard_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"held_by": "[b]ada", "waiting_for": "roll_back", "frozen": True, "since": None}
    text = shown(capsys, guard=guard_figures(**state, moves=[]))
    assert "held by [b]ada · WAITS FOR A WORD ON roll_back · FROZEN" in text
    assert "last moves" not in text
    assert "Guard: off" in shown(capsys, guard={"mode": "off"})
    assert "Guard: not known" in shown(capsys, guard=None)


def test_replicas_that_follow_the_load_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    now = cluster_figures()["at"]
    step = {"at": now - 5, "before": 1, "after": 2, "cause": "load", "reason": "9 sequences/s"}
    scaling = {
        "ready": 1,
        "desired": 2,
        "min": 0,
        "max": 4,
        "cause": "steady",
        "reason": "so it is",
    }
    text = shown(capsys, autoscaling=scaling | {"steps": [step]})
    assert "Replicas: 1 of 2 (0 to 4) · steady: so it is" in text
    assert "ago: 1 → 2, load: 9 sequences/s" in text
    assert "Replicas:" not in shown(capsys)


def test_failures_are_counted_and_the_newest_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert "failed or turned away: queue_full 6,262 · replica_lost 86" in text
    assert f"replica_lost · {SCRIPT} · replica-2 · {SCRIPT}" in text
    assert "turned away" not in shown(capsys, failures=[], failure_reasons={})


def test_a_narrow_terminal_has_fewer_columns_and_whole_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "PIPE_WIDTH", 48)
    lines = shown(capsys).splitlines()
    assert max(map(len, lines)) <= 48
    heads = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert heads["replica"] == ["replica", "health", "age", "running", "seats"]
    assert heads["tenant"][:3] == ["tenant", "weight", "service"]
    assert heads["latency"] == ["latency", "p50", "p95", "p99"]


def test_no_figures_are_one_line_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with figures_server(FakeHub(None)) as url:
        assert run("--url", url) == 1
    with serving(ScriptedServer()) as other:
        assert run("--url", f"{other}/v1") == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        assert run("--url", f"http://127.0.0.1:{taken.getsockname()[1]}") == 1
    captured = capsys.readouterr()
    no_hub, not_ours, nobody = captured.err.splitlines()
    assert "the Hub does not answer; serving goes on" in no_hub
    assert "is it Chairlift?" in not_ours
    assert "chairlift serve" in nobody
    assert captured.out == ""


def test_what_is_no_address_is_wrong_use() -> None:
    with pytest.raises(ConfigError, match="--url"):
        run("--url", "localhost:8000")
