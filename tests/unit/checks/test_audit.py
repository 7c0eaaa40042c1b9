"""What is made of pip-audit's report."""

import json

import pytest

from checks.audit import verdict

SOUND = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
ILL = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


def report(*packages: object) -> str:
    return json.dumps({"dependencies": packages})


@pytest.mark.parametrize("where_possible", [False, True])
def test_a_vulnerability_fails_in_any_case(where_possible: bool) -> None:
    code, lines = verdict(report(SOUND, ILL, UNKNOWN), where_possible)
    assert code == 1
    assert lines == ["c 2: CVE-1, mended in 3", "audited 2 of 3 packages"]


def test_sound_packages_pass_and_those_that_nobody_knows_are_not_counted() -> None:
    assert verdict(report(SOUND, UNKNOWN), False) == (0, ["audited 1 of 2 packages"])


@pytest.mark.parametrize("text", ["", "a connection error", "{}", report(), report(UNKNOWN)])
def test_where_nobody_can_be_asked_that_is_said_and_never_called_sound(text: str) -> None:
    code, (line,) = verdict(text, where_possible=False)
    assert code == 1 and line.startswith("not audited")
    assert verdict(text, where_possible=True) == (0, [line])
