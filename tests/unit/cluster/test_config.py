"""One tree; whatever is wrong with it is named by its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.cluster.config import (
    GrpcConfig,
    HttpConfig,
    cache_folder,
    load_config,
    parse_bytes,
)
from chairlift.cluster.errors import ConfigError, Unauthorized
from chairlift.cluster.guard_state import Mode
from chairlift.cluster.protocol import Batching, Priority
from chairlift.cluster.tenants import ANONYMOUS, Tenant, hash_key
from chairlift.deployments.serve import FLAG_PATHS


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("engine: {token_budget: 1, max_sequences: 1, block_size: 1}\n")
    environment = {"CHAIRLIFT__ENGINE__TOKEN_BUDGET": "2", "CHAIRLIFT__ENGINE__MAX_SEQUENCES": "2"}
    engine = load_config(file, {"engine.token_budget": 3}, environment).engine
    assert (engine.token_budget, engine.max_sequences, engine.block_size) == (3, 2, 1)
    assert engine.max_waiting == load_config(environment={}).engine.max_waiting


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("engine.token_buget", 3, "did you mean engine.token_budget"),
        ("engin", 3, "did you mean engine?"),
        ("engine.kv_memory", "3GX", "engine.kv_memory: '3GX' is no size"),
        ("engine.batching", "x", "engine.batching: "),
        ("http.port", 0, "http.port: "),
        ("workers.threads", "many", "workers.threads"),
        ("workers.tensor_parallel", 0, "workers.tensor_parallel: "),
        ("workers.transport", "carrier pigeon", "workers.transport: "),
        ("engine.device", "abacus", "engine.device: "),
        ("engine.dtype", "float8", "engine.dtype: "),
        ("engine.graph_sequences", -1, "engine.graph_sequences: "),
        ("router.deadlines.bach", 3, "did you mean router.deadlines.batch?"),
        ("tenants.acme.wieght", 3, "did you mean tenants.acme.weight?"),
        ("tenants.acme.weight", 0, "tenants.acme.weight: "),
        ("tenants.acme", 3, "tenants.acme: "),
        ("tenants", {"no spaces": {}}, "tenants.no spaces"),
    ],
)
def test_fault_is_named_by_its_path(path: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(overrides={path: value}, environment={})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("keys", ["cl-secret", ["cl-secret"], ["sha256:cl-secret"]])
def test_a_key_in_place_of_its_hash_is_refused_and_not_repeated(keys: object) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(overrides={"tenants.acme.keys": keys}, environment={})
    assert str(error.value).startswith("tenants.acme.keys")
    assert "secret" not in str(error.value)


def test_tenants_are_found_by_their_keys() -> None:
    acme = {"keys": [hash_key("a"), hash_key("b")], "weight": 2, "priority": "batch"}
    tenants = load_config(
        overrides={"tenants": {"acme": acme, "anonymous": {"max_requests": 1}}}, environment={}
    ).who_is_served()
    assert tenants.find("a") == tenants.find("b")
    assert tenants.find("a") == Tenant("acme", weight=2, priority=Priority.BATCH)
    assert tenants.find(None) == Tenant("anonymous", max_requests=1)
    with pytest.raises(Unauthorized):
        tenants.find("c")


def test_without_a_tenant_named_anonymous_a_key_is_needed() -> None:
    tenants = load_config(overrides={"tenants.acme.weight": 2}, environment={}).who_is_served()
    for key in (None, "", "a"):
        with pytest.raises(Unauthorized):
            tenants.find(key)


def test_without_tenants_everybody_is_anonymous() -> None:
    tenants = load_config(environment={}).who_is_served()
    assert tenants.find(None) == tenants.find("any") == ANONYMOUS


def test_two_tenants_cannot_have_one_key() -> None:
    both = {name: {"keys": [hash_key("a")]} for name in ("acme", "other")}
    with pytest.raises(ConfigError, match=r"^tenants: acme and other have a key in common$"):
        load_config(overrides={"tenants": both}, environment={})


@pytest.mark.parametrize("text", ["[1, 2]", "engine: 3", "a: [", "engine: {batching: 7}"])
def test_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_config(file, environment={})


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml"):
        load_config(tmp_path / "no.yaml", environment={})


def test_every_flag_is_a_path_in_the_tree() -> None:
    for path in FLAG_PATHS.values():
        with pytest.raises(ConfigError) as error:
            load_config(overrides={path: object()}, environment={})
        assert str(error.value).startswith(path)


@pytest.mark.parametrize("value", ["off", False])
def test_off_is_off_also_where_yaml_takes_it_for_false(value: object) -> None:
    assert load_config(overrides={"guard.mode": value}, environment={}).guard_mode is Mode.OFF
    environment = {"CHAIRLIFT__GUARD__MODE": "off"}
    assert load_config(environment=environment).guard_mode is Mode.OFF


def test_without_telemetry_there_is_no_guard() -> None:
    assert load_config(environment={}).guard_mode is Mode.ACT
    blind = {"telemetry.enabled": False, "guard.mode": "shadow"}
    assert load_config(overrides=blind, environment={}).guard_mode is Mode.OFF


def test_operators_are_named_by_hashes_of_keys_of_their_own_which_no_error_shows() -> None:
    keys = {"operators": {"ann": ["sha256:" + "a" * 64], "bob": ["sha256:" + "b" * 64]}}
    assert load_config(overrides=keys, environment={}).operators.keys() == {"ann", "bob"}
    shared = {"operators": {"ann": ["sha256:" + "a" * 64], "bob": ["sha256:" + "a" * 64]}}
    with pytest.raises(ConfigError, match=r"^operators: ann and bob have a key in common$"):
        load_config(overrides=shared, environment={})
    for wrong in ({"ann": ["my-secret"]}, {"ann": "my-secret"}, {"ann": [{"hash": "my-secret"}]}):
        with pytest.raises(ConfigError, match=r"^operators\.ann") as error:
            load_config(overrides={"operators": wrong}, environment={})
        assert "my-secret" not in str(error.value)


def test_controls_carry_the_engine_section() -> None:
    engine = load_config(overrides={"engine.batching": "static-sorted"}, environment={}).engine
    controls = engine.controls()
    assert controls.batching is Batching.STATIC_SORTED
    assert (controls.token_budget, controls.max_sequences) == (512, 32)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2G", 2 * 10**9), (" 1.5 GiB ", 3 << 29), (7, 7), ("7b", 7)],
)
def test_sizes_are_read_with_their_units(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


def test_kernels_are_one_of_four_kinds():
    assert load_config(environment={}).engine.kernels == "auto"
    chosen = load_config(environment={"CHAIRLIFT__ENGINE__KERNELS": "torch"})
    assert chosen.engine.kernels == "torch"
    with pytest.raises(ConfigError, match=r"^engine\.kernels: .*'cpp'"):
        load_config(overrides={"engine.kernels": "fortran"}, environment={})


def test_numbers_of_the_cpu_are_one_of_three_kinds():
    assert load_config(environment={}).engine.cpu_math == "auto"
    chosen = load_config(overrides={"engine.cpu_math": "float32"}, environment={})
    assert chosen.engine.cpu_math == "float32"
    with pytest.raises(ConfigError, match=r"^engine\.cpu_math: .*'int8'"):
        load_config(overrides={"engine.cpu_math": "int4"}, environment={})


def test_the_cache_folder_is_that_of_the_xdg_specification():
    assert cache_folder({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me/chairlift")
    home = Path.home() / ".cache" / "chairlift"
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "relative"}) == home


@pytest.mark.parametrize(
    ("http", "grpc", "address"),
    [
        ({}, {}, ("127.0.0.1", 9000)),
        ({"port": 64535}, {}, ("127.0.0.1", 65535)),
        ({"port": 64536}, {}, ("127.0.0.1", 63536)),
        ({"host": "::1", "port": 8001}, {}, ("::1", 9001)),
        ({"host": "0.0.0.0"}, {"host": "127.0.0.1", "port": 5000}, ("127.0.0.1", 5000)),
        ({}, {"port": "5000"}, ("127.0.0.1", 5000)),
    ],
)
def test_grpc_listens_beside_http(http, grpc, address):
    assert GrpcConfig(**grpc).address(HttpConfig(**http)) == address
