"""What a changed configuration does to a service that runs."""

import pytest

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.reload import changes, check_reload, router_version, worker_version

HASH, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


@pytest.mark.parametrize(
    ("path", "value", "replaced"),
    [
        ("workers__replicas", 3, ""),
        ("router__replicas", 2, ""),
        ("workers__health_period_s", 2.0, ""),
        ("workers__threads", 1, "workers"),
        ("engine__max_sequences", 8, "workers"),
        ("ledger__always", True, "workers"),
        ("router__look_ahead", 5, "routers"),
        ("http__max_body", "1MiB", "routers"),
        ("tenants__acme__keys", [HASH], "routers"),
        ("router__fair", False, "workers and routers"),
    ],
)
def test_only_those_replicas_are_replaced_that_a_change_concerns(path, value, replaced):
    old, new = config(), config(**{path: value})
    check_reload(old, new)
    assert (worker_version(old) != worker_version(new)) == ("workers" in replaced)
    assert (router_version(old) != router_version(new)) == ("routers" in replaced)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("http__port", 9000),
        ("http__host", "0.0.0.0"),
        ("model__name", "other"),
        ("ray__object_store", "1GiB"),
        ("workers__tensor_parallel", 2),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(path, value):
    with pytest.raises(ConfigError, match=rf"^{path.replace('__', '[.]')}: .*restart"):
        check_reload(config(), config(**{path: value}))


def test_changes_are_told_one_by_one_without_keys():
    old = config(workers__replicas=1, tenants__old={}, tenants__both__weight=1)
    new = config(
        workers__replicas=2, tenants__new__keys=[HASH], tenants__both={"keys": [OTHER], "weight": 1}
    )
    assert changes(old, new) == [
        "workers.replicas: 1 → 2",
        "tenants.old: removed",
        "tenants.both.keys: changed",
        "tenants.new: changed",
    ]
    assert changes(new, new) == []
