import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_policy import SHIPPED, load_policy
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.deployments import monitoring
from chairlift.deployments.alerts import alert_rules
from chairlift.deployments.certificate_ends import METRIC
from chairlift.deployments.cluster_metrics import cluster_families
from support.figures import cluster_figures

WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABELS = re.compile(r"\{[^}]*\}|\bby\s*\([^)]*\)|\[[^\]]*\]|\$\w+")
FUNCTIONS = {"max", "min", "rate", "increase", "absent", "label_values", "time"}


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    monitoring.add_arguments(parser)
    return monitoring.run(parser.parse_args(flags))


def named(expression: str) -> set[str]:
    """The metrics in an expression of Prometheus's."""
    return set(WORD.findall(LABELS.sub(" ", expression))) - FUNCTIONS


def labels(expression: str) -> set[str]:
    """The labels that an expression asks for or groups by."""
    grouped = ",".join(re.findall(r"\bby\s*\(([^)]*)\)", expression))
    asked = re.findall(r"(\w+)\s*=~?\s*\"", expression)
    return {*asked, *(word.strip() for word in grouped.split(",") if word.strip())}


def known() -> dict[str, set[str]]:
    """Labels by name of the metric, of a cluster of which everything is known."""
    figures = cluster_figures()
    for window in figures["windows"].values():
        window["cost_per_met"] = 0.01
    clusters = {
        sample.name: set(sample.labels)
        for family in cluster_families(figures)
        for sample in family.samples
    }
    return clusters | {METRIC: {"setting"}}  # of each router's own page


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def board() -> dict[str, Any]:
    folder = Path(monitoring.__file__).parent / "grafana"
    loaded: dict[str, Any] = json.loads((folder / "dashboard.json").read_text("utf-8"))
    return loaded


def rules(policy_file: Path | None = None) -> dict[str, dict[str, Any]]:
    tree = yaml.safe_load(alert_rules(load_policy(policy_file)))
    return {rule["alert"]: rule for group in tree["groups"] for rule in group["rules"]}


def of_signal(signal: Signal) -> str:
    return "ChairliftSignal" + signal.value.title().replace("_", "")


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert run("--out", str(folder)) == 0
    assert json.loads((folder / "dashboard.json").read_text("utf-8")) == board()
    assert (folder / "alerts.yaml").read_text("utf-8") == alert_rules(load_policy(None))
    assert "dashboard.json" in capsys.readouterr().out


def test_alerts_lead_to_their_runbooks_wherever_the_page_is(tmp_path: Path) -> None:
    for name, rule in rules().items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
    assert run("--out", str(tmp_path), "--runbooks", "https://wiki.example/ops") == 0
    assert "runbook_url: https://wiki.example/ops#chairlifthubmissing" in (
        (tmp_path / "alerts.yaml").read_text("utf-8")
    )


def test_what_cannot_be_written_or_read_is_one_line(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(ConfigError, match="--out"):
        run("--out", str(taken))
    with pytest.raises(ConfigError, match="nothing"):
        run("--out", str(tmp_path), "--guard", str(tmp_path / "nothing.yaml"))


def test_every_panel_asks_for_metrics_and_labels_that_there_are() -> None:
    there = known()
    asked = [target["expr"] for panel in panels(board()) for target in panel["targets"]]
    asked += [
        variable["query"]["query"]
        for variable in board()["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert len(asked) > 40
    for expression in asked:
        if expression.startswith("label_values"):
            metric, label = re.findall(r"\w+", expression)[1:]
            assert label in there[metric]
        else:
            (metric,) = named(expression)
            assert labels(expression) <= there[metric], expression
            assert "window" not in there[metric] or "window" in labels(expression), expression


def test_the_dashboard_is_whole() -> None:
    whole = board()
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in whole["templating"]["list"]}
    assert variables == {"datasource", "window", "tenant", "signal"}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(whole["panels"])))
    assert variables <= used
    assert used - variables == set()
    for panel in panels(whole):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert 0 < place["w"] <= 24 - place["x"]
    for one in panels(whole):
        for other in panels(whole):
            assert one is other or not overlap(one["gridPos"], other["gridPos"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


def test_the_boards_rungs_have_the_ladders_names() -> None:
    (rung,) = (panel for panel in panels(board()) if panel["title"] == "Rung")
    (mapping,) = rung["fieldConfig"]["defaults"]["mappings"]
    shown = {int(value): named["text"] for value, named in mapping["options"].items()}
    assert shown == {each.value: each.name.lower().replace("_", " ") for each in Rung}


def test_every_rule_asks_for_metrics_and_labels_that_there_are() -> None:
    there = known()
    for rule in rules().values():
        (metric,) = named(rule["expr"].split(">")[0].split("<")[0].split("==")[0])
        assert labels(rule["expr"]) <= there[metric]


def test_rules_are_what_prometheus_takes() -> None:
    tree = yaml.safe_load(alert_rules(load_policy(None)))
    assert set(tree) == {"groups"}
    assert len({group["name"] for group in tree["groups"]}) == len(tree["groups"])
    assert len(rules()) == sum(len(group["rules"]) for group in tree["groups"])
    for name, rule in rules().items():
        assert re.fullmatch(r"[A-Za-z_]\w*", name)
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+(s|ms)", rule["for"])
        assert re.fullmatch(
            r"(absent\([a-z_]+\)|(max|min)\([^()]+\)|max\(increase\([a-z_]+\[\d+m\]\)\))"
            r"( - time\(\))?( (<=|>=|>|<|==) [0-9.]+)?",
            rule["expr"],
        )
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["labels"]["owner"]
        assert set(rule["annotations"]) == {"summary", "runbook_url"}
        assert rule["annotations"]["summary"].count("{{") == rule["annotations"]["summary"].count(
            "}}"
        )


def test_each_signal_has_a_rule_with_the_policys_threshold_and_owner(tmp_path: Path) -> None:
    changed = yaml.safe_load(SHIPPED.read_text("utf-8"))
    changed["signals"]["kv_use"] |= {"threshold": 0.8125, "for_s": 2.5, "owner": "memory"}
    file = tmp_path / "guard.yaml"
    file.write_text(yaml.safe_dump(changed))
    for policy_file in (None, file):
        policy, made = load_policy(policy_file), rules(policy_file)
        for signal in Signal:
            rule, its = made[of_signal(signal)], policy.signals[signal]
            value, beyond, threshold = rule["expr"].rsplit(" ", 2)
            assert value == f'max(chairlift_cluster_guard_signal_value{{signal="{signal.value}"}})'
            assert beyond == ("<=" if signal is Signal.STEPS_LEFT else ">=")
            assert float(threshold) == its.threshold
            number, unit = re.fullmatch(r"(\d+)(ms|s)", rule["for"]).groups()
            assert int(number) / {"ms": 1000, "s": 1}[unit] == its.for_s
            assert rule["labels"]["owner"] == its.owner
    assert rules(file)[of_signal(Signal.KV_USE)]["expr"].endswith(">= 0.8125")


def test_a_person_is_called_from_the_rung_page_on() -> None:
    assert rules()["ChairliftGuardPage"]["expr"].endswith(f">= {Rung.PAGE.value}")
    critical = {name for name, rule in rules().items() if rule["labels"]["severity"] == "critical"}
    assert critical == {
        "ChairliftGuardFrozen",
        "ChairliftGuardPage",
        "ChairliftGuardWaiting",
        "ChairliftHubMissing",
        "ChairliftNoReplica",
        of_signal(Signal.CONTRADICTION),
    }
