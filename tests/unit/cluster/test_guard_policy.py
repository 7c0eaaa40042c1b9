from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_policy import SHIPPED, GuardPolicy, load_policy, rung_named
from chairlift.cluster.guard_state import Rung, Signal


def shipped() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return tree


def loaded(folder: Path, tree: object) -> GuardPolicy:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return load_policy(file)


def test_the_shipped_policy_has_every_signal_with_an_owner_and_a_reason():
    policy = load_policy()
    assert list(policy.signals) == list(Signal), "in the order in which they come"
    for signal in policy.signals.values():
        assert signal.owner
        assert signal.why
        assert signal.for_s < signal.within_s


def test_the_shipped_policy_lets_no_signal_past_a_person_who_was_not_asked():
    policy = load_policy()
    assert policy.ladder.approval == {Rung.ROLL_BACK, Rung.STOP}
    for signal in policy.signals.values():
        assert signal.rung is None or signal.rung < Rung.ROLL_BACK


def test_leave_time_doubles_up_to_its_limit():
    ladder = load_policy().ladder
    assert [ladder.leave_after_s(count) for count in (0, 1, 2, 3, 4, 5, 99)] == [
        60, 120, 240, 480, 960, 960, 960,
    ]  # fmt: skip
    assert ladder.most_relapses == 4
    assert ladder.relapse_within_s(1) == 600
    assert ladder.relapse_within_s(99) == ladder.relapse_within_s(4)


@pytest.mark.parametrize("name", ["refuse_best_effort", "REFUSE_BEST_EFFORT", 3])
def test_a_rung_has_a_name_and_a_number(name: object):
    assert rung_named(name) is Rung.REFUSE_BEST_EFFORT


@pytest.mark.parametrize("name", ["best_effort", "", 11, -1, True, None, 3.0, ["stop"]])
def test_what_is_no_rung_is_refused_with_all_that_are(name: object):
    with pytest.raises(ValueError, match=r"expected one of normal, no_speculation, .*, stop"):
        rung_named(name)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("signals.kv_use.threshold", "much", "signals.kv_use.threshold: .* (got 'much')"),
        ("signals.kv_use.threshold", 0, "signals.kv_use.threshold: "),
        ("signals.kv_use.threshold", float("nan"), "signals.kv_use.threshold: "),
        ("signals.kv_use.rung", "panic", "signals.kv_use.rung: expected one of normal"),
        ("signals.kv_use.rung", "normal", "signals.kv_use: rung must be above normal"),
        ("signals.kv_use.climbs_to", "no_speculation", "signals.kv_use: climbs_to must not"),
        ("signals.offered_load.urgent.rung", "static", "signals.offered_load: urgent.rung must"),
        ("signals.kv_use.climb_after_s", None, "signals.kv_use: .* belong together"),
        ("signals.kv_use.within_s", 1, "signals.kv_use: within_s must not be below for_s"),
        ("signals.kv_use.owner", "Jane Doe", "signals.kv_use.owner: "),
        ("signals.kv_use.why", "one\ntwo", "signals.kv_use.why: "),
        ("signals.kv_use.colour", "red", "signals.kv_use.colour: unknown setting"),
        ("signals.kv_usage", {}, "signals: there is no signal kv_usage"),
        ("signals", [], "signals: "),
        ("ladder.leave_share", 1, "ladder.leave_share: "),
        ("ladder.approval", ["roll_back"], "ladder: approval must have stop"),
        ("ladder.approval", ["stop", "think"], "ladder.approval.1: expected one of"),
        ("ladder.relapse_s", 10, "ladder: relapse_s must not be below leave_for_s"),
        ("ladder.longest_leave_for_s", 10, "ladder: longest_leave_for_s must not"),
        ("ladder.smaller_steps.token_budget", 0, "ladder.smaller_steps.token_budget: "),
        ("limits.slowdown_ratio", 1, "limits.slowdown_ratio: "),
        ("limit", 1, "limit: unknown setting"),
        ("webhooks", [{"url": "mailto:me"}], "webhooks.0.url: "),
        ("webhooks", [{"url": "http://a/b", "owners": ["nobody"]}], "webhooks.0.owners: nobody"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_file_and_path(
    tmp_path: Path, path: str, value: object, message: str
):
    tree = shipped()
    *parents, leaf = path.split(".")
    section = tree
    for parent in parents:
        section = section[parent]
    section[leaf] = value
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ConfigError, match=f"mine.yaml: {pattern}") as caught:
        loaded(tmp_path, tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("signal", Signal)
def test_no_signal_can_be_left_out(tmp_path: Path, signal: Signal):
    tree = shipped()
    del tree["signals"][signal.value]
    with pytest.raises(ConfigError, match=f"signals: {signal} is missing"):
        loaded(tmp_path, tree)


def test_only_a_contradiction_asks_for_no_rung(tmp_path: Path):
    tree = shipped()
    ladder = {"rung": "page", "climbs_to": "page", "climb_after_s": 1}
    tree["signals"]["contradiction"] |= ladder
    with pytest.raises(ConfigError, match=r"signals\.contradiction\.rung: "):
        loaded(tmp_path, tree)
    tree = shipped()
    for key in ladder:
        del tree["signals"]["kv_use"][key]
    with pytest.raises(ConfigError, match=r"signals\.kv_use\.rung: "):
        loaded(tmp_path, tree)


def test_webhooks_are_for_owners_of_signals(tmp_path: Path):
    tree = shipped()
    tree["webhooks"] = [
        {"url": "https://pager.example/x", "owners": ["serving"]},
        {"url": "http://10.0.0.1:9/"},
    ]
    serving, everybody = loaded(tmp_path, tree).webhooks
    assert serving.owners == ("serving",)
    assert everybody.owners == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [("ladder: [", "is not YAML"), ("", "the file: "), ("- 1", "the file: "), ("7", "the file: ")],
)
def test_a_file_that_is_no_policy_is_one_line(tmp_path: Path, text: str, message: str):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_policy(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*none.yaml: No such file"):
        load_policy(tmp_path / "none.yaml")
