import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from chairlift.evaluation.study_figures import ladder, occupancy
from chairlift.evaluation.study_html import page
from chairlift.evaluation.study_report import markdown, write_reports
from chairlift.evaluation.study_store import Result
from chairlift.evaluation.study_summary import (
    Findings,
    find,
    where_worse,
    within_runs,
    worse_groups,
)
from chairlift.evaluation.study_wording import WITHIN, number
from support.studies import PLAN, finished_study, small_run, write_plan

HOSTILE = "<script>alert(1)</script>"


def told(folder: Path, text: str = PLAN) -> tuple[Result, Findings]:
    result = finished_study(folder / "result", write_plan(folder, text)).read()
    return result, find(result.plan, result.runs)


def test_the_reports_say_what_was_asked_and_what_was_found(tmp_path: Path) -> None:
    result, findings = told(tmp_path)
    for document in (markdown(result, findings), page(result, findings)):
        assert "The claim holds: every threshold passed" in document
        assert "serve with continuous batching" in document
        assert "the plan is not registered" in document
        assert "228/240" in document
        assert "12 gave_up: no first token" in document
        assert f"SHA-256 {result.entry.standing.sha256}" in document


def test_how_sure_one_run_is_stands_beside_the_medians(tmp_path: Path) -> None:
    result, findings = told(tmp_path)
    within = within_runs(result.plan, findings.counting_runs)
    assert {(each.arm, each.round) for each in within} == {("continuous", 0), ("static", 0)}
    assert all(each.low < each.high for each in within)
    first = within[0]
    for document in (markdown(result, findings), page(result, findings)):
        assert WITHIN in document
        assert f"{number(first.low)} to {number(first.high)}" in document


def test_a_claim_that_fails_is_said_to_fail(tmp_path: Path) -> None:
    result, findings = told(tmp_path, PLAN.replace("at_least: 1.2", "at_least: 3"))
    assert findings.judgement.exit_code == 1
    assert "The claim does not hold" in markdown(result, findings)
    assert '<p class="verdict failed">' in page(result, findings)


def test_the_arm_put_forward_is_worse_where_it_is(tmp_path: Path) -> None:
    turned = re.sub(r"arm: continuous\n( *)over: static", r"arm: static\n\1over: continuous", PLAN)
    result, findings = told(tmp_path, turned)
    worse = {loss.measure: loss.ratio for loss in where_worse(result.plan, findings.counting)}
    assert worse["output_tokens_per_s"] < 0.98
    assert worse["end_to_end_p99_s"] > 1.02
    assert "tokens_equal" not in worse
    groups = worse_groups(result.plan, findings.counting_runs)
    assert ("end_to_end_p95_s", "tenant tenant1") in {(each.measure, each.group) for each in groups}


def test_the_json_has_it_all(tmp_path: Path) -> None:
    result, findings = told(tmp_path)
    write_reports(result, findings)
    tree = orjson.loads((result.folder / "report.json").read_bytes())
    assert tree["judgement"]["state"] == "passed"
    assert len(tree["measures"]) == len(result.runs)
    assert {path.name for path in result.folder.glob("report.*")} == {
        "report.html",
        "report.json",
        "report.md",
    }


def test_the_page_is_sound_needs_nothing_and_runs_nothing(tmp_path: Path) -> None:
    result, findings = told(tmp_path, PLAN.replace("serve with continuous batching", HOSTILE))
    document = page(result, findings)
    assert HOSTILE not in document
    reader = _Reader()
    reader.feed(document)
    assert reader.open == []
    assert "script" not in reader.seen
    assert {url for url in reader.links if not url.startswith("data:")} == set()
    assert reader.seen.count("figure") == 8


def test_void_runs_are_in_no_figure(tmp_path: Path) -> None:
    result, _ = told(tmp_path)
    first = result.runs[0]
    late = tuple(replace(each, sent_s=each.intended_s + 1) for each in first.outcomes)
    findings = find(result.plan, [replace(first, outcomes=late), *result.runs[1:]])
    assert [void.arm for void in findings.judgement.void_runs] == ["static"]
    assert len(findings.counting) == len(findings.counting_runs) == len(result.runs) - 1
    assert "the generator lagged" in page(result, findings)


@pytest.mark.parametrize("arm", ["static", "continuous"])
def test_a_picture_of_seats_has_a_bar_a_ride(arm: str) -> None:
    run = small_run(arm)
    assert occupancy(run, run.seconds).svg.count('class="ride') == len(run.rides)


def test_the_ladder_has_the_rungs_that_were_reached() -> None:
    figure = ladder({"continuous": small_run("continuous")})
    assert figure is not None
    assert "smaller steps" in figure.svg
    assert "page" not in figure.svg
    assert ladder({"continuous": replace(small_run("continuous"), moves=())}) is None


class _Reader(HTMLParser):
    """Elements that are open, all that were, and addresses."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links |= {value or "" for name, value in attrs if name in ("href", "src")}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
