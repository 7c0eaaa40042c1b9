"""The table of a service's processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chairlift.evaluation.memory import Usage, main, measure, parse_rollup, short_name, table


def test_pss_and_rss_are_read() -> None:
    lines = ["55a8-7ffe ---p 0 00:00 0 [rollup]\n", "Rss:  300 kB\n", "Pss:  200 kB\n"]
    assert parse_rollup([*lines, "Pss_Anon:  100 kB\n"]) == (200, 300)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["ray::Worker"], "ray::Worker"),
        (["/x/bin/python", "-u", "/x/ray/monitor.py", "--port=1"], "monitor.py"),
        (["/x/bin/python3.11", "-m", "chairlift.deployments.cli"], "chairlift.deployments.cli"),
        (["/x/gcs/gcs_server", "--log_dir=/y"], "gcs_server"),
        ([], "?"),
    ],
)
def test_a_process_is_called_what_it_is(command: list[str], name: str) -> None:
    assert short_name(command) == name


def test_the_table_ends_with_the_sum() -> None:
    lines = table([Usage("a", 1, 2048, 4096, 0.5), Usage("b", 2, 1024, 1024, 0.25)]).splitlines()
    assert lines[1].split() == ["a", "1", "2", "4", "50.0"]
    assert lines[-1].split() == ["sum", "3", "5", "75.0"]


def test_children_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pids = {usage.pid for usage in measure(os.getpid(), 0.01)}
        assert {os.getpid(), child.pid} <= pids
        child.communicate()


def test_a_process_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["999999999"]) == 1
    assert "no process" in capsys.readouterr().err
