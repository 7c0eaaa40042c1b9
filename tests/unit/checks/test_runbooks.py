from pathlib import Path

import pytest
import yaml

from chairlift.cluster.guard_policy import load_policy
from chairlift.deployments.alerts import alert_rules
from chairlift.evaluation.runbooks import read_runbooks
from checks.runbooks import check_commands, check_rules, check_runbooks, check_rungs, main

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
POLICY = load_policy(None)


def rules():
    tree = yaml.safe_load(alert_rules(POLICY))
    return [rule for group in tree["groups"] for rule in group["rules"]]


def found(page: str) -> list[str]:
    runbooks = read_runbooks(page)
    return [
        violation.message
        for violations in (
            check_runbooks(runbooks),
            check_rules(runbooks, rules()),
            check_rungs(runbooks, POLICY),
            check_commands(page),
        )
        for violation in violations
    ]


def without(section: str, part: str) -> str:
    """The page, with one part of one section taken out."""
    before, heading, after = PAGE.partition(f"### {section}\n")
    head, _, rest = after.partition(f"**{part}.**")
    _, following, tail = rest.partition("\n**") if part != "Owner" else ("", "\n", rest)
    return before + heading + head + following.lstrip("\n") + tail


def test_the_page_has_all_that_it_must(capsys):
    assert main([]) == 0
    assert "0 violations" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["Symptom", "First look", "Action"])
def test_a_missing_part_is_found(part):
    assert f"ChairliftHubMissing has no {part}" in found(without("ChairliftHubMissing", part))


def test_a_missing_owner_is_found():
    page = PAGE.replace(
        "**Owner.** telemetry\n\n### ChairliftUnbalanced", "### ChairliftUnbalanced"
    )
    assert page != PAGE
    messages = found(page)
    assert "ChairliftHubMissing has no Owner" in messages


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("ChairliftCallsFail", "no runbook for the alert ChairliftCallsFail"),
        ("ChairliftSignalKvUse", "no runbook for the signal kv_use: ChairliftSignalKvUse"),
        ("Rung 7: static", "no runbook for a rung: Rung 7: static"),
    ],
)
def test_a_missing_runbook_is_found(title, message):
    assert message in found(PAGE.replace(f"### {title}\n", "### Another\n"))


def test_another_owner_and_another_link_are_found():
    runbooks = read_runbooks(PAGE)
    rule = next(rule for rule in rules() if rule["alert"] == "ChairliftHubMissing")
    rule["labels"]["owner"] = "nobody"
    rule["annotations"]["runbook_url"] = "docs/operations.md#elsewhere"
    messages = [each.message for each in check_rules(runbooks, [rule])]
    assert messages == [
        "ChairliftHubMissing links docs/operations.md#elsewhere, not its runbook",
        "ChairliftHubMissing is owned by nobody, its runbook by telemetry",
    ]
    del rule["annotations"]["runbook_url"]
    assert any("links None" in each.message for each in check_rules(runbooks, [rule]))


def test_a_look_that_shows_nothing_is_found():
    page = PAGE.replace("   # shows Held by\n", "\n")
    assert found(page) == ["ChairliftGuardHeld: no command of First look shows anything"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("`chairlift pland --rate 3`", "there is no chairlift pland"),
        ("```sh\nx | chairlift guard \\\n  --ulr $URL\n```", "chairlift guard has no --ulr"),
        ("`python -m chairlift.evaluation.drill`", "no module chairlift.evaluation.drill"),
    ],
)
def test_a_command_that_is_not_there_is_found_with_its_line(code, message):
    (violation,) = check_commands(f"# Page\n\nSay {code}, for instance.\n")
    assert message in violation.message
    assert violation.line == 3 + code.count("sh\n")


def test_what_other_programs_take_is_theirs():
    page = "`chairlift top --once | grep --count x` and ```sh\ncurl --silent $URL\n```"
    assert list(check_commands(page)) == []
