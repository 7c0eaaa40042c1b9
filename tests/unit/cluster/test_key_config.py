"""Keys as they stand in a configuration."""

import io
from datetime import UTC, datetime

import pytest
import yaml

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import ConfigError, Unauthorized
from chairlift.cluster.keys import hash_key
from chairlift.deployments.cli import main

HASH = hash_key("k")


def with_keys(text: str) -> ServiceConfig:
    return load_config(overrides={"tenants.acme.keys": yaml.safe_load(text)}, environment={})


@pytest.mark.parametrize(
    "expires",
    ["2027-01-31", '"2027-01-31"', "2027-01-31T00:00:00Z", "2027-01-31 01:00:00+01:00"],
)
def test_a_time_is_one_of_utc_unless_it_says_otherwise(expires: str) -> None:
    config = with_keys(f'["{hash_key("other")}", {{hash: "{HASH}", expires: {expires}}}]')
    plain, expiring = config.tenants["acme"].keys
    assert plain.expires is None
    assert expiring.expires == datetime(2027, 1, 31, tzinfo=UTC)


def test_an_expired_key_is_refused_and_others_of_its_tenant_are_not() -> None:
    tenants = with_keys(f'["{hash_key("new")}", {{hash: "{HASH}", expires: 2020-01-01, name: ci}}]')
    assert tenants.who_is_served().find("new").name == "acme"
    with pytest.raises(Unauthorized) as error:
        tenants.who_is_served().find("k")
    assert error.value.code == "expired_api_key"


def test_an_operators_key_can_expire_and_leaves_nobody_as_operator() -> None:
    key = {"hash": HASH, "expires": "2020-01-01"}
    operators = load_config(overrides={"operators.ann": [key]}, environment={}).who_may_operate()
    assert operators, "or whoever is on this machine would be one"
    with pytest.raises(Unauthorized, match="expired"):
        operators.find("k")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("[secret]", "sha256"),
        ("[{hash: secret}]", "sha256"),
        (f'[{{hash: "{HASH}", expires: secret}}]', "date"),
        (f'[{{hash: "{HASH}", expires: 3}}]', "date"),
        (f'[{{hash: "{HASH}", name: "a secret"}}]', "name"),
        (f'[{{hash: "{HASH}", expire: secret}}]', r"did you mean tenants\.acme\.keys\.0\.expires"),
        ("[{expires: 2027-01-31}]", "hash"),
    ],
)
def test_what_is_wrong_is_named_and_not_repeated(keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        with_keys(keys)
    assert str(error.value).startswith("tenants.acme.keys.0")
    assert "secret" not in str(error.value)


def test_operators_without_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^operators\.ann"):
        load_config(overrides={"operators.ann": []}, environment={})


def test_the_command_prints_an_entry_with_an_expiry(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("k\n"))
    assert main(["key", "--hash", "--expires", "2027-01-31"]) == 0
    (key,) = with_keys(f"[{capsys.readouterr().out}]").tenants["acme"].keys
    assert (key.hash, key.expires) == (HASH, datetime(2027, 1, 31, tzinfo=UTC))
    assert main(["key", "--expires", "soon"]) == 2
    assert "--expires: expected a date" in capsys.readouterr().err
