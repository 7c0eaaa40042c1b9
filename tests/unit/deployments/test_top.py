import argparse
import socket

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.deployments import top
from support.figures import SCRIPT, cluster_figures
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
    assert rows["replica-3"][1:] == ["NOT", "LIVE", *"––––––"]
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
