import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.cluster.errors import NotFound
from chairlift.deployments.cli import main
from chairlift.workers.ledger_records import Plan
from support.engines import Rig, replica_info
from support.fake_router import FakeRouter, live_view
from support.figures_server import figures_server
from support.ledgers import Crowd, record, tamper


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rig = Rig()
    ledger = record(rig)
    crowd = Crowd(rig, seed=1)
    for _ in range(120):
        crowd.step()
    crowd.calm()
    path = tmp_path / "some.ledger"
    path.write_bytes(ledger.content())
    return path


def test_replay_counts_what_it_compared(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith("no difference: ")


def test_replay_shows_the_first_difference_and_fails(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, plan = tamper(
        file.read_bytes(),
        lambda each: isinstance(each, Plan) and bool(each.slices),
        lambda payload: payload[:-1] + bytes((payload[-1] ^ 1,)),
    )
    assert isinstance(plan, Plan)
    file.write_bytes(changed)
    assert main(["replay", str(file)]) == 1
    first, recorded, recomputed = capsys.readouterr().out.splitlines()
    assert first == f"step {plan.head.step}, plan: the plan differs"
    assert recorded.startswith("  recorded ") and recomputed.startswith("  recomputed ")


@pytest.mark.parametrize("command", [["replay"], ["ledger"], ["ledger", "--json"]])
def test_a_damaged_file_is_named_in_one_line(
    command: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(file.read_bytes()[:-3])
    assert main([*command, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file} is damaged at byte" in line


def test_json_is_a_line_for_the_header_and_each_record(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "--json", str(file)]) == 0
    header, first, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert (header["kind"], header["model"]) == ("header", "fake")
    assert first["kind"] == "snapshot"
    assert {each["kind"] for each in records} >= {"queued", "plan", "advanced", "retired", "refill"}
    arrivals = [
        a for each in records if each["kind"] == "queued" for a in each["inputs"]["arrivals"]
    ]
    assert {"request_id", "tenant", "tokens", "sampling"} <= arrivals[0].keys()


def test_the_summary_says_what_was_waited_for(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", str(file)]) == 0
    out = capsys.readouterr().out
    for part in ("fake, replica r", "preemptions", "step time", "seats taken", "for a seat"):
        assert part in out


def test_explain_tells_a_story_or_says_that_there_is_none(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "request-0", "--file", str(file)]) == 0
    assert "arrived" in capsys.readouterr().out
    assert main(["explain", "nobody", "--file", str(file)]) == 1
    assert "does not know nobody" in capsys.readouterr().err


class OneLedger:
    """Stands in for ``router.ledgers``."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def fetch(self, replica_id: str, steps: int) -> bytes:
        if replica_id != "r":
            raise NotFound(f"There is no replica {replica_id!r}", code="no_such_replica")
        return self._content


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    with figures_server(ledgers=OneLedger(file.read_bytes())) as address:
        yield address


def test_the_ledger_of_a_service_is_saved_for_nobody_else(
    url: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.ledger"
    assert main(["ledger", "--url", url, "--replica", "r", "-o", str(saved)]) == 0
    assert saved.read_bytes() == file.read_bytes()
    assert saved.stat().st_mode & 0o077 == 0
    assert capsys.readouterr().out == ""


def test_the_ledger_of_a_service_is_printed_like_a_file(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "--url", url, "--replica", "r"]) == 0
    assert "fake, replica r" in capsys.readouterr().out


def test_the_only_replica_need_not_be_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--url", url]) == 0
    assert "fake, replica r" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("views", "flags", "said"),
    [
        ("r", ["--replica", "other"], "There is no replica 'other'"),
        ("rs", [], "say which one: r, s"),
        ("", [], "no replica is live"),
    ],
)
def test_it_is_said_which_replicas_there_are(
    views: str, flags: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router = FakeRouter()
    router.views = [live_view(replica_info(replica_id=each)) for each in views]
    with figures_server(router=router, ledgers=OneLedger(file.read_bytes())) as url:
        assert main(["ledger", "--url", url, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_flags_that_do_not_go_together_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", str(file), "-o", "x"]) == 2
    assert "--output goes with --url" in capsys.readouterr().err
