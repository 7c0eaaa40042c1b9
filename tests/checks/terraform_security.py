"""What must be set, and what must not be there, so that a cluster is closed where nobody opened it.

A table says by type of resource which settings it takes; the other rules are about addresses,
public ends, secrets, roles, and the tags by which costs are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.source import Violation
from checks.terraform_read import Block, Folder, literal, nested
from checks.terraform_schema import Schema

__all__ = ["check_security", "check_skips"]

Rule = Callable[[Any], bool]


def _is(*values: Any) -> Rule:
    return lambda value: value in values


def _given(value: Any) -> bool:
    return value not in (None, "", [], {})


def _not(*values: Any) -> Rule:
    return lambda value: value not in values


_MUST: Mapping[str, Mapping[str, Rule]] = {
    "aws_cloudwatch_log_group": {"kms_key_id": _given, "retention_in_days": _given},
    "aws_eks_cluster": {
        "enabled_cluster_log_types": _given,
        "encryption_config.provider.key_arn": _given,
        "vpc_config.endpoint_private_access": _is(True),
    },
    "aws_instance": {
        "metadata_options.http_tokens": _is("required"),
        "root_block_device.encrypted": _is(True),
    },
    "aws_kms_key": {"enable_key_rotation": _is(True)},
    "aws_launch_template": {
        "block_device_mappings.ebs.encrypted": _is(True),
        "metadata_options.http_put_response_hop_limit": _is(1),
        "metadata_options.http_tokens": _is("required"),
    },
    "aws_lb_listener": {"protocol": _is("TLS"), "ssl_policy": _given},
    "aws_s3_bucket_public_access_block": {
        "block_public_acls": _is(True),
        "block_public_policy": _is(True),
        "ignore_public_acls": _is(True),
        "restrict_public_buckets": _is(True),
    },
    "aws_s3_bucket_server_side_encryption_configuration": {
        "rule.apply_server_side_encryption_by_default.kms_master_key_id": _given,
        "rule.apply_server_side_encryption_by_default.sse_algorithm": _is("aws:kms"),
    },
    "aws_s3_bucket_versioning": {"versioning_configuration.status": _is("Enabled")},
    "aws_secretsmanager_secret": {"kms_key_id": _given},
    "google_compute_ssl_policy": {"min_tls_version": _is("TLS_1_2")},
    "google_compute_subnetwork": {"private_ip_google_access": _is(True)},
    "google_container_cluster": {
        "database_encryption.key_name": _given,
        "database_encryption.state": _is("ENCRYPTED"),
        "master_authorized_networks_config": _given,
        "private_cluster_config.enable_private_nodes": _is(True),
        "workload_identity_config.workload_pool": _given,
    },
    "google_container_node_pool": {
        "node_config.boot_disk_kms_key": _given,
        "node_config.service_account": _given,
        "node_config.shielded_instance_config.enable_secure_boot": _is(True),
        "node_config.workload_metadata_config.mode": _is("GKE_METADATA"),
    },
    "google_kms_crypto_key": {"rotation_period": _given},
    "google_storage_bucket": {
        "encryption.default_kms_key_name": _given,
        "public_access_prevention": _is("enforced"),
        "uniform_bucket_level_access": _is(True),
        "versioning.enabled": _is(True),
    },
}

_IF_GIVEN: Mapping[str, Mapping[str, Rule]] = {
    "aws_eks_cluster": {"vpc_config.endpoint_public_access": _not(True)},
    "aws_instance": {"associate_public_ip_address": _is(False), "key_name": _is(None)},
    "aws_launch_template": {
        "key_name": _is(None),
        "network_interfaces.associate_public_ip_address": _is(False),
    },
    "aws_secretsmanager_secret_version": {"secret_string": _is(None)},  # it would be in the state
    "aws_subnet": {"map_public_ip_on_launch": _is(False)},
    "google_container_cluster": {"private_cluster_config.enable_private_endpoint": _not(False)},
}

_BESIDE = {
    "aws_s3_bucket": (
        "aws_s3_bucket_policy",
        "aws_s3_bucket_public_access_block",
        "aws_s3_bucket_server_side_encryption_configuration",
        "aws_s3_bucket_versioning",
    ),
    "aws_vpc": ("aws_default_security_group", "aws_flow_log"),
}
"""Types that stand in the same folder."""

_OUTWARD = frozenset({"aws_route_table", "aws_vpc_security_group_egress_rule"})
_WORLD = re.compile(r"(?<![\d.])0\.0\.0\.0/0|::/0")
_SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|\bAIza[\w-]{35}|\bgh[pousr]_\w{36}"
)
_SECRET_NAME = re.compile(r"(^|_)(secret|password|token|private_key)(_|$)")
_ROLE = re.compile(r"roles/(owner|editor|viewer|.*[aA]dmin)$")
_SKIP = re.compile(r"# checkov:skip=CKV2?_[A-Z]+_\d+:\S.{9,}")
_STATEMENT = re.compile(r'Effect\s*=\s*"(\w+)"')
_ALL_ACTIONS = re.compile(r'Action\s*=\s*\[?\s*"(\*|\w+:\*)"')


def check_security(folder: Folder, schema: Schema) -> Iterator[Violation]:
    types = {block.type for block in folder.of("resource")}
    for block in folder.of("resource"):
        yield from _check_table(block)
        yield from _check_tags(block, schema)
        yield from _check_rights(block)
        for beside in _BESIDE.get(block.type, ()):
            if beside not in types:
                yield block.violation(f"there is no {beside} beside it")
    for block in folder.blocks:
        yield from _check_text(block)
    for block in folder.of("variable"):
        yield from _check_variable(block)


def check_skips(folder: Folder, root: Path) -> Iterator[Violation]:
    """What checkov is told to leave out has its reason beside it."""
    for path in sorted((root / folder.path).glob("*.tf")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if "checkov:skip" in line and not _SKIP.search(line):
                name = path.relative_to(root).as_posix()
                yield Violation(name, number, "wants checkov:skip=CHECK:reason")


def _check_table(block: Block) -> Iterator[Violation]:
    for path, rule in _MUST.get(block.type, {}).items():
        values = nested(block.body, path)
        if not values or not all(map(rule, values)):
            yield block.violation(f"{path} is not as it must be (found {values})")
    for path, rule in _IF_GIVEN.get(block.type, {}).items():
        if not all(map(rule, nested(block.body, path))):
            yield block.violation(f"{path} must not be {nested(block.body, path)}")


def _check_tags(block: Block, schema: Schema) -> Iterator[Violation]:
    taken = schema["resource"].get(block.type, {}).get("optional", "").split()
    for name in ("tags", "labels", "resource_labels", "user_labels"):
        if name in taken and name not in block.body:
            yield block.violation(f"has no {name}")


def _check_rights(block: Block) -> Iterator[Violation]:
    """Whatever is allowed is named; an account's own key may be all its account's."""
    if _ROLE.search(str(literal(block.body.get("role")))):
        yield block.violation(f"{block.body['role']} is too much")
    for name in ("policy", "assume_role_policy"):
        effects = _STATEMENT.split(str(block.body.get(name, "")))
        # Effect comes before Action, in each statement.
        for effect, rest in zip(effects[1::2], effects[2::2], strict=True):
            found = _ALL_ACTIONS.search(rest)
            if effect == "Allow" and found and block.type != "aws_kms_key":
                yield block.violation(f"{name} allows {found[1]}")


def _check_text(block: Block) -> Iterator[Violation]:
    body = {key: value for key, value in block.body.items() if key != "description"}
    text = str(body)
    if _SECRET.search(text):
        yield block.violation("has a secret in it")
    if block.type not in _OUTWARD and _WORLD.search(text):
        yield block.violation("is open to the whole world; leave that to whoever applies it")


def _check_variable(block: Block) -> Iterator[Violation]:
    default = literal(block.body.get("default"))
    if _SECRET_NAME.search(block.name):
        if not (block.body.get("sensitive") or block.body.get("ephemeral")):
            yield block.violation("is a secret and not marked sensitive or ephemeral")
        if default:
            yield block.violation("is a secret and has a default")
    if block.name == "api_cidrs" and default != []:
        yield block.violation("the Kubernetes API must be closed by default")
