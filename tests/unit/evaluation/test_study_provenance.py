import hashlib
from pathlib import Path

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.evaluation.study_files import flatten
from chairlift.evaluation.study_plan import EngineTarget, parse_plan
from chairlift.evaluation.study_provenance import hash_model, make_manifest
from support.studies import PLAN

SERVICE = """{kind: service, config: {
  engine: {token_budget: 96},
  tenants: {gold: {weight: 2, keys: [SECRET]}},
  operators: {ann: [SECRET2]}}}"""


def manifest(text: str, traces: Path | None = None) -> dict[str, object]:
    return dict(flatten(make_manifest(parse_plan(text, "plan"), "0" * 64, traces, "command")))


def test_a_manifest_names_what_goes_in() -> None:
    found = manifest(PLAN)
    assert found["plan.sha256"] == "0" * 64
    assert found["seeds.plan"] == 1
    assert found["configuration.arms.static.batching"] == "static"
    assert found["configuration.replica.seats"] == 4
    assert len(str(found["code.sha256"])) == 64
    assert found["versions.pydantic"]
    assert found["machine.cores"]


def test_a_manifest_is_the_same_the_second_time() -> None:
    assert manifest(PLAN) == manifest(PLAN)


def test_the_policy_is_there_where_an_arm_has_a_guard() -> None:
    assert "policy" in manifest(PLAN)  # an empty one
    found = manifest(PLAN.replace("continuous: {}", "continuous: {guard: act}"))
    assert any(name.startswith("policy.signals") for name in found)


def test_a_trace_has_its_hash_or_none_where_it_is_not_there(tmp_path: Path) -> None:
    source = '{kind: drawn, rate: 20, prompt: "constant:8", output: "uniform:2,40"}'
    text = PLAN.replace(source, f"{{kind: trace, file: load.csv, sha256: {'a' * 64}}}")
    assert manifest(text, tmp_path)["traces.load.csv"] is None
    (tmp_path / "load.csv").write_bytes(b"load")
    found = manifest(text, tmp_path)["traces.load.csv"]
    assert found == hashlib.sha256(b"load").hexdigest()


def test_nobodys_keys_are_in_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "chairlift.evaluation.study_provenance.hash_model", lambda _: {"weights": "1"}
    )
    monkeypatch.setattr("chairlift.evaluation.study_provenance._kernels", lambda _: {})
    hashes = ("sha256:" + "b" * 64, "sha256:" + "c" * 64)
    service = SERVICE.replace("SECRET2", hashes[1]).replace("SECRET", hashes[0])
    found = manifest(PLAN.replace("{kind: simulated}", service))
    assert found["configuration.service.engine.token_budget"] == 96
    assert found["configuration.service.tenants.gold.weight"] == 2
    everything = repr(found)
    assert "b" * 64 not in everything
    assert "c" * 64 not in everything


def test_weights_tokenizer_and_template_of_a_folder_have_hashes_of_their_own(
    tmp_path: Path,
) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).write_text(name)
    target = EngineTarget(kind="engine", model=str(tmp_path))
    before = hash_model(target)
    (tmp_path / "tokenizer.json").write_text("another")
    after = hash_model(target)
    assert {name for name in before if before[name] != after[name]} == {"tokenizer"}
    assert None not in before.values()


def test_a_model_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        hash_model(EngineTarget(kind="engine", model=str(tmp_path / "none.gguf")))
