"""What a changed configuration does to a service that runs."""

import json

import pytest

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_policy import load_policy
from chairlift.deployments.reload import (
    changes,
    check_reload,
    read_told,
    router_version,
    told_to_routers,
    worker_version,
)

HASH, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
PAIR = {"certificate": "c.pem", "key": "k.pem"}
STREAM_TLS = {"ca": "ca.pem", "worker": PAIR, "router": PAIR}


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


@pytest.mark.parametrize(
    ("path", "value", "replaced"),
    [
        ("workers__replicas", 3, ""),
        ("workers__autoscaling__max_replicas", 3, ""),
        ("router__replicas", 2, ""),
        ("workers__health_period_s", 2.0, ""),
        ("workers__threads", 1, "workers"),
        ("engine__max_sequences", 8, "workers and routers"),
        ("engine__token_budget", 64, "workers and routers"),
        ("engine__prefix_cache", False, "workers"),
        ("guard__mode", "shadow", "routers"),
        ("operators__ann", [HASH], ""),
        ("ledger__always", True, "workers"),
        ("router__look_ahead", 5, "routers"),
        ("http__max_body", "1MiB", "routers"),
        ("grpc__max_message", "1MiB", "routers"),
        ("tenants__acme__keys", [HASH], ""),
        ("router__fair", False, "workers and routers"),
    ],
)
def test_only_those_replicas_are_replaced_that_a_change_concerns(path, value, replaced):
    old, new = config(), config(**{path: value})
    check_reload(old, new)
    assert (worker_version(old) != worker_version(new)) == ("workers" in replaced)
    policy = load_policy()
    assert (router_version(old, policy) != router_version(new, policy)) == ("routers" in replaced)


def test_without_a_guard_the_engines_settings_concern_no_router():
    policy = load_policy()
    for off in ({"guard__mode": "off"}, {"telemetry__enabled": False}):
        old, new = config(**off), config(engine__token_budget=64, **off)
        assert router_version(old, policy) == router_version(new, policy)


def test_another_policy_replaces_routers():
    policy = load_policy()
    limits = policy.limits.model_copy(update={"objective": 0.5})
    other = policy.model_copy(update={"limits": limits})
    assert router_version(config(), policy) != router_version(config(), other)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("http__port", 9000),
        ("http__host", "0.0.0.0"),
        ("grpc__port", 9001),
        ("grpc__enabled", False),
        ("http__tls", {"certificate": "c.pem", "key": "k.pem"}),
        ("workers__tls", STREAM_TLS),
        ("model__name", "other"),
        ("ray__object_store", "1GiB"),
        ("workers__tensor_parallel", 2),
        ("workers__resources", {"big_node": 1}),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(path, value):
    with pytest.raises(ConfigError, match=rf"^{path.replace('__', '[.]')}[.\w]*: .*restart"):
        check_reload(config(), config(**{path: value}))


def test_other_files_of_tls_replace_routers():
    policy = load_policy()
    old = config(http__tls={"certificate": "c.pem", "key": "k.pem"})
    new = config(http__tls={"certificate": "c.pem", "key": "k.pem", "client_ca": "ca.pem"})
    check_reload(old, new)
    assert router_version(old, policy) != router_version(new, policy)


def test_other_files_of_the_stream_replace_both_ends():
    policy = load_policy()
    old, new = config(workers__tls=STREAM_TLS), config(workers__tls=STREAM_TLS | {"ca": "new.pem"})
    check_reload(old, new)
    assert worker_version(old) != worker_version(new)
    assert router_version(old, policy) != router_version(new, policy)


def test_changes_are_told_one_by_one_without_keys():
    old = config(workers__replicas=1, tenants__old={}, tenants__both__weight=1)
    new = config(
        workers__replicas=2,
        tenants__new__keys=[HASH],
        tenants__both={"keys": [OTHER], "weight": 1},
        operators__ann=[HASH],
    )
    assert changes(old, new) == [
        "workers.replicas: 1 → 2",
        "tenants.old: removed",
        "tenants.both.keys: changed",
        "tenants.new: changed",
        "operators.ann: changed",
    ]
    assert changes(new, new) == []


def test_what_running_routers_are_told_are_all_keys_with_their_terms():
    old = {"hash": OTHER, "expires": "2027-01-31", "name": "old"}
    new = config(router__replicas=2, tenants__acme={"keys": [HASH, old]}, operators__ann=[OTHER])
    told = read_told(json.loads(json.dumps(told_to_routers(new))))
    assert (told.tenants, told.operators) == (new.tenants, new.operators)
    assert told.router.replicas == 2
