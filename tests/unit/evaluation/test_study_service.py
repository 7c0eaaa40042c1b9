"""How an arm becomes a configuration, and a record the outcome of a request."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from chairlift.cluster.config import load_config
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation.records import RequestRecord
from chairlift.evaluation.study_arm import Lone
from chairlift.evaluation.study_plan import Arm, ServiceTarget
from chairlift.evaluation.study_run import Fate
from chairlift.evaluation.study_service import config_of, open_service, outcome_of
from chairlift.evaluation.study_work import Asked
from support.study_plans import plan_of

ASKED = Asked(3, "a", 1.0, (1, 2, 3), 4)


def record(failure: str | None = None, chunks: tuple[float, ...] = (2.0, 3.0)) -> RequestRecord:
    return RequestRecord(1.0, 1.5, 4.0, 3, 4, chunks, 3, 4 if chunks else 0, failure, digest="text")


def test_an_arm_goes_before_the_target_s_configuration(tmp_path: Path) -> None:
    target = ServiceTarget(
        kind="service", config={"engine": {"max_sequences": 9, "max_waiting": 7}, "model": {}}
    )
    arm = Arm(seats=3, blocks=10, batching="static", fair=False, guard="shadow")
    spec = read_spec(resolve_model("smollm2"))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config_of(plan_of(), target, arm, ["a", "b"], spec)))
    config = load_config(file)
    assert (config.engine.max_sequences, config.engine.max_waiting) == (3, 7)
    assert config.engine.kv_memory == 10 * 4 * spec.kv_bytes_per_token(4)
    assert (config.engine.batching, config.router.fair) == ("static", False)
    assert (config.guard.mode, set(config.tenants)) == ("shadow", {"a", "b"})
    assert config.telemetry.first_token_target_s == 1.0


def test_the_first_tenant_by_name_has_double_weight_where_that_is_planted() -> None:
    spec, target = read_spec(resolve_model("smollm2")), ServiceTarget(kind="service")
    arm = Arm(planted="double_weight")
    tenants = config_of(plan_of(), target, arm, ["b", "a"], spec)["tenants"]
    assert isinstance(tenants, dict)
    assert {name: each["weight"] for name, each in tenants.items()} == {"a": 2.0, "b": 1.0}


@pytest.mark.parametrize(
    ("failure", "chunks", "fate"),
    [
        (None, (2.0, 3.0), Fate.COMPLETED),
        ("http_429", (), Fate.REFUSED),
        ("grpc_unavailable", (), Fate.REFUSED),
        ("gave_up", (), Fate.GAVE_UP),
        ("cut_stream", (2.0,), Fate.FAILED),
    ],
)
def test_each_end_has_its_fate(failure: str | None, chunks: tuple[float, ...], fate: Fate) -> None:
    outcome = outcome_of(ASKED, record(failure, chunks), Lone(1.0, 0.5))
    assert (outcome.fate, outcome.why) == (fate, failure or "")
    assert outcome.digest == ("text" if fate is Fate.COMPLETED else None)
    assert (outcome.intended_s, outcome.sent_s, outcome.alone_s) == (1.0, 1.5, 5.0)


def test_tokens_are_spread_evenly_over_the_chunks() -> None:
    assert outcome_of(ASKED, record(), Lone()).tokens_s == (2.0, 2.0, 3.0, 3.0)
    assert outcome_of(ASKED, record(), Lone()).alone_s is None


@pytest.mark.parametrize("arm", [{"reserve": True}, {"planted": "refill_late"}])
def test_what_a_service_cannot_do_is_said_at_the_start(arm: dict[str, object]) -> None:
    target = ServiceTarget(kind="service")
    plan = plan_of({"one": arm}, target={"kind": "service"})
    with pytest.raises(ConfigError, match="arm one"), open_service(plan, target):
        pass
