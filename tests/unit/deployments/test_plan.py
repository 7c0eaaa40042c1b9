import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.cluster.config import load_config
from chairlift.deployments.cli import main
from chairlift.evaluation import machine_ceilings
from support.tiny_llama import random_weights, write_folder

NUMBERS = "--parameters 8.03B --layers 32 --heads 32 --kv-heads 8 --head-size 128".split()
LOAD = "--rate 20 --prompt 1000,3000 --output 300,900 --per-token 0.05".split()


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["plan", *flags, "--json"]) == 0
    tree: dict[str, Any] = json.loads(capsys.readouterr().out)
    return tree


def value(tree: dict[str, Any], figure: str) -> float:
    return float(tree["figures"][figure]["value"])


def test_the_table_shows_every_figure_with_its_bounds_and_the_assumptions(capsys):
    assert main(["plan", *NUMBERS, "--gpu", "h100", *LOAD, "--price", "3.5"]) == 0
    shown = capsys.readouterr().out
    for words in ("15.0 GiB", "128 KiB", "low to high", "cost per million", "Erlang", "70% of the"):
        assert words in shown


def test_the_configuration_is_one_that_serve_takes(tmp_path: Path, capsys):
    file = tmp_path / "plan.yaml"
    tree = planned(
        capsys, *NUMBERS, "--gpu", "h100", *LOAD, "--price", "3.5", "--config", str(file)
    )
    written = yaml.safe_load(file.read_text())
    bounds = written["workers"]["autoscaling"]
    needed = value(tree, "replicas with spares")
    assert bounds["min_replicas"] <= needed <= bounds["max_replicas"]
    config = load_config(file, environment={})
    assert config.engine.max_sequences == value(tree, "seats, per replica")
    assert (config.workers.least, config.workers.most) == tuple(bounds.values())
    assert config.router.replicas == value(tree, "routers")
    assert config.engine.kv_memory <= value(tree, "room for the KV cache, per replica")
    assert config.engine.dtype == "bfloat16"
    assert config.telemetry.per_token_target_s == 0.05
    assert config.telemetry.price_per_replica_hour == 3.5


def test_a_model_is_read_from_its_files(tmp_path: Path, capsys):
    folder = write_folder(tmp_path / "model", random_weights(), torch_dtype="bfloat16")
    few = "--rate 1 --prompt 20 --output 10".split()
    tree = planned(capsys, "--model", str(folder), "--gpu", "l4", *few)
    weights = sum(tensor.numel() for tensor in random_weights().values())
    assert value(tree, "weights") == 2 * weights
    assert tree["figures"]["tensor-parallel degree"]["value"] == 1
    file = tmp_path / "plan.yaml"
    planned(capsys, "--model", str(folder), "--gpu", "l4", *few, "--config", str(file))
    assert yaml.safe_load(file.read_text())["model"] == {"path": str(folder)}


def test_this_machine_is_measured_where_no_numbers_are_given(capsys, monkeypatch):
    monkeypatch.setattr(machine_ceilings, "_READ_SHAPE", (64, 64))
    monkeypatch.setattr(machine_ceilings, "_SIDE", 64)
    small = "--parameters 1M --layers 2 --kv-heads 2 --head-size 16 --gpu cpu --rate 1".split()
    tree = planned(capsys, *small)
    assert tree["device"]["source"] == "measured now"
    assert tree["device"]["flops"]["float32"] > 0
    given = planned(capsys, *small, "--memory-bandwidth", "20", "--flops", "0.5")
    assert given["device"]["bandwidth"] == 20e9
    assert given["device"]["flops"] == {"float32": 0.5e12}


def test_a_device_that_is_not_in_the_table_is_given_by_numbers(capsys):
    numbers = "--gpu other --memory 40GiB --memory-bandwidth 1000 --flops 200".split()
    tree = planned(capsys, *NUMBERS, *LOAD, *numbers)
    assert tree["device"]["memory"] == 40 * 1024**3
    assert tree["device"]["source"] == "given"


def test_more_devices_where_the_weights_do_not_fit(capsys):
    large = "--parameters 70.6B --layers 80 --heads 64 --kv-heads 8 --head-size 128".split()
    tree = planned(capsys, *large, "--gpu", "h100", *LOAD)
    assert tree["tensor_parallel"] == 2
    assert planned(capsys, *large, "--gpu", "h100", *LOAD, "--tensor-parallel", "8")[
        "tensor_parallel"
    ] == 8  # fmt: skip


def test_targets_that_cannot_be_met_are_no_success(capsys):
    slow = ["plan", *NUMBERS, "--gpu", "h100", *LOAD, "--first-token", "0.05"]
    assert main(slow) == 1
    assert "the targets are not met even in the expected case" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--gpu", "h100"], "without --model it takes --parameters, --layers, --kv-heads"),
        ([*NUMBERS, "--gpu", "h900"], "--gpu h900: there is cpu, a10g"),
        ([*NUMBERS, "--gpu", "a10g", "--dtype", "float8"], "--dtype float8: a10g has bfloat16"),
        ([*NUMBERS, "--gpu", "cpu", "--dtype", "bfloat16"], "on a CPU it is float32 or int8"),
        ([*NUMBERS, "--gpu", "l4", "--kv-heads", "5"], "--heads: 32 attention heads"),
        ([*NUMBERS, "--gpu", "l4", "--model", "smollm2"], "give one of the two"),
        (["--gpu", "l4", "--model", "/nowhere.gguf"], "does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(flags, fault, capsys):
    assert main(["plan", *flags, *LOAD]) == 2
    refused = capsys.readouterr().err
    assert fault in refused
    assert refused.count("\n") == 1


def test_requests_longer_than_the_context_are_refused(tmp_path: Path, capsys):
    folder = write_folder(tmp_path / "model", random_weights(), torch_dtype="bfloat16")
    assert main(["plan", "--model", str(folder), "--gpu", "l4", *LOAD]) == 2
    assert "takes 128" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", [["--rate", "0"], ["--prompt", "100,50"], ["--shared-prefix", "1"], ["--spares", "-1"]]
)
def test_numbers_that_mean_nothing_are_wrong_use(flag, capsys):
    with pytest.raises(SystemExit):
        main(["plan", *NUMBERS, "--gpu", "h100", *LOAD, *flag])
    assert flag[0] in capsys.readouterr().err
