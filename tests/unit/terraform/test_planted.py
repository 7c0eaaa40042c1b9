"""Each rule finds the mistake that it is there for, planted into the files as they are."""

from pathlib import Path

import pytest

from checks.terraform import check, main
from checks.terraform_read import Folder
from checks.terraform_security import check_skips

ROOT = Path(__file__).parents[3]
AWS, GCP = "modules/aws", "modules/gcp"
SERVICE, VM = "modules/service", "modules/ray-vm"

CONSISTENCY = [
    (f"{AWS}/variables.tf", "  type        = bool\n", "", "has no type"),
    (f"{AWS}/variables.tf", '  description = "Minor', '  # "', "has no description"),
    (f"{AWS}/outputs.tf", 'description = "Where the weights belong."', "", "has no description"),
    (
        f"{AWS}/door/variables.tf",
        "  validation {\n    condition     = var.http",
        "  no {\n a = var.http",
        "no validation",
    ),
    (f"{AWS}/main.tf", "var.cidr", "var.cdir", "var.cdir is not there"),
    (f"{AWS}/main.tf", "local.tags", "local.tag", "local.tag is not there"),
    (f"{AWS}/main.tf", "module.key.arn", "module.key.arm", "has no output arm"),
    (f"{AWS}/main.tf", "module.key.arn", "module.kee.arn", "module.kee is not there"),
    (f"{AWS}/main.tf", "node_group.system", "node_group.sytem", "node_group.sytem is not there"),
    (f"{AWS}/main.tf", "partition.this.p", "partition.us.p", "aws_partition.us is not there"),
    (f"{AWS}/main.tf", "nat_per_zone  = var.nat_per_zone\n", "", "nat_per_zone: is not used"),
    (f"{AWS}/main.tf", "locals {", "locals {\n  left = 1", "left is not used"),
    (
        f"{AWS}/main.tf",
        'data "aws_partition" "this"',
        'data "aws_partition" "us"',
        "us: is not used",
    ),
    (f"{AWS}/main.tf", 'source = "./network"', 'source = "./net"', "./net is no module here"),
    (f"{AWS}/main.tf", "zones         = var", "zone          = var", "zone is no variable of"),
    (
        f"{AWS}/main.tf",
        "  kms_key_arn   = module.key.arn\n  tags",
        "  tags",
        "kms_key_arn of terraform/mod",
    ),
    (f"{AWS}/versions.tf", "~> 6.25", ">= 6.25", "aws is not pinned as ~>"),
    (f"{AWS}/versions.tf", "~> 6.25", "~> 6.30", "aws is ~> 6.30 here and ~> 6.25"),
    (f"{AWS}/versions.tf", 'required_version = ">= 1.9"', "", "has no required_version"),
    (f"{AWS}/versions.tf", "aws = {", "awss = {", "aws is used and not listed"),
    (f"{GCP}/versions.tf", "google = {", "ggl = {", "ggl is listed and not used"),
    (f"{SERVICE}/main.tf", '"1.6.2"', '"~> 1.6"', "its chart is not pinned to one version"),
    (f"{SERVICE}/variables.tf", "= 8000", "= 8001", "cluster/config has 8000"),
    (f"{SERVICE}/main.tf", "http_port + 1000", "http_port + 100", "gRPC 1000 above HTTP"),
    (f"{VM}/main.tf", "http_port = 8000", "http_port = 80", "cluster/config has 8000"),
    (f"{VM}/variables.tf", '"2.60.0"', '"2.59.0"', "constraints.txt has another one"),
    (
        f"{VM}/main.tf",
        "        region  = ",
        "        site  = ",
        "region is asked for and not given",
    ),
    (f"{VM}/main.tf", "templates/setup.sh", "templates/up.sh", "up.sh.tftpl is not there"),
    (
        f"{AWS}/variables.tf",
        "default     = 365",
        "default     = 400",
        "tables differ from the code",
    ),
]

SCHEMA = [
    (f"{AWS}/cluster.tf", "role_arn   ", "role_arm   ", "role_arm is no argument"),
    (f"{AWS}/cluster.tf", "role_arn   ", "role_arm   ", "role_arn is required"),
    (
        f"{AWS}/cluster.tf",
        "private_access",
        "private",
        "vpc_config.endpoint_private is no argument",
    ),
    (
        f"{AWS}/cluster.tf",
        "role.cluster.arn",
        "role.cluster.arm",
        "aws_iam_role has no attribute arm",
    ),
    (f"{AWS}/nodes.tf", "card_index ", "card ", "network_interfaces.network_card is no argument"),
    (
        f"{AWS}/cluster.tf",
        '"aws_eks_addon" "core',
        '"aws_eks_adon" "core',
        "is not in terraform_schema",
    ),
    (f"{GCP}/cluster.tf", "driver_version = ", "driver = ", "gpu_driver is no argument"),
]

SECURITY = [
    (
        f"{AWS}/cluster.tf",
        "private_access = true",
        "private_access = false",
        "private_access is not",
    ),
    (
        f"{AWS}/cluster.tf",
        "length(var.api_cidrs) > 0\n",
        "true\n",
        "public_access must not be [True]",
    ),
    (
        f"{AWS}/cluster.tf",
        "key_arn = module.key.arn",
        "key_arn = null",
        "provider.key_arn is not as",
    ),
    (f"{AWS}/cluster.tf", "  kms_key_id        = module.key.arn\n", "", "kms_key_id is not as"),
    (f"{AWS}/cluster.tf", '"kube-proxy"\n  tags ', '"kube-proxy"\n  # ', "kube_proxy: has no tags"),
    (
        f"{AWS}/variables.tf",
        "  default     = []\n\n  v",
        '  default = ["192.0.2.0/24"]\n  v',
        "closed by d",
    ),
    (f"{AWS}/nodes.tf", '= "required"', '= "optional"', "http_tokens is not as it must be"),
    (
        f"{AWS}/nodes.tf",
        "encrypted             = true",
        "encrypted = false",
        "ebs.encrypted is not",
    ),
    (
        f"{AWS}/nodes.tf",
        "public_ip_address = false",
        "public_ip_address = true",
        "must not be [True]",
    ),
    (f"{AWS}/network/main.tf", "on_launch = false", "on_launch = true", "must not be [True]"),
    (f"{AWS}/network/main.tf", '"aws_flow_log" "', '"aws_flow" "', "no aws_flow_log beside it"),
    (f"{AWS}/key/main.tf", "rotation     = true", "rotation = false", "enable_key_rotation is not"),
    (f"{AWS}/weights/main.tf", "public_acls       = true", "public_acls = false", "acls is not as"),
    (
        f"{AWS}/weights/main.tf",
        "_versioning" + '" "this',
        "_version" + '" "this',
        "versioning beside it",
    ),
    (f"{AWS}/weights/main.tf", '"aws:kms"', '"AES256"', "sse_algorithm is not as"),
    (
        f"{AWS}/weights/main.tf",
        'status = "Enabled"\n  }\n}',
        'status = "Suspended"\n  }\n}',
        "status is",
    ),
    (f"{AWS}/door/main.tf", 'protocol          = "TLS"', 'protocol = "TCP"', "protocol is not as"),
    (f"{AWS}/door/main.tf", "each.value[1]", '"0.0.0.0/0"', "is open to the whole world"),
    (f"{AWS}/identities.tf", '["eks:DescribeNodegroup"]', '["eks:*"]', "policy allows eks:*"),
    (
        f"{VM}/main.tf",
        "secret_string_wo = join",
        "secret_string = join",
        "secret_string must not be",
    ),
    (
        f"{VM}/main.tf",
        "  ebs_optimized  ",
        '  key_name = "mine"\n  ebs_optimized  ',
        "key_name must not",
    ),
    (
        f"{GCP}/cluster.tf",
        "private_nodes    = true",
        "private_nodes = false",
        "private_nodes is not",
    ),
    (f"{GCP}/cluster.tf", '"ENCRYPTED"', '"DECRYPTED"', "database_encryption.state is not"),
    (
        f"{GCP}/cluster.tf",
        'GKE_METADATA"\n    }\n  }\n\n  d',
        'GCE"\n    }\n  }\n\n  d',
        "metadata_config",
    ),
    (f"{GCP}/main.tf", '"enforced"', '"inherited"', "public_access_prevention is not"),
    (f"{GCP}/main.tf", '  rotation_period = "7776000s" # 90 days\n', "", "rotation_period is not"),
    (f"{GCP}/main.tf", "  user_labels  = local.labels\n", "", "has no user_labels"),
    (f"{GCP}/identities.tf", "storage.objectViewer", "storage.admin", "storage.admin is too much"),
]


def test_the_files_as_they_are_break_no_rule(folders, schema):
    assert [str(each) for each in check(folders, ROOT, schema)] == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [*CONSISTENCY, *SCHEMA, *SECURITY],
)
def test_a_planted_mistake_is_found(planted, file, old, new, message):
    found = planted(file, old, new)
    assert any(message in each for each in found), found


@pytest.mark.parametrize("name", ["api_token", "password", "client_secret"])
def test_a_variable_for_a_secret_has_to_be_marked_and_has_no_default(planted, name):
    new = f'variable "{name}" {{\n  type = string\n  default = "x"\n}}\n\nvariable "name" {{'
    found = "\n".join(planted(f"{AWS}/variables.tf", 'variable "name" {', new))
    assert "not marked sensitive" in found
    assert "is a secret and has a default" in found


def test_a_secret_in_a_file_is_found(planted):
    new = 'locals {\n  key = "AKIAABCDEFGHIJKLMNOP"'
    assert "has a secret in it" in "\n".join(planted(f"{AWS}/main.tf", "locals {", new))


@pytest.mark.parametrize(
    ("comment", "line"),
    [
        ("# checkov:skip=CKV_AWS_18", 1),
        ("# checkov:skip=CKV_AWS_18:no", 1),
        ("# checkov:skip=CKV2_AWS_62:nobody waits for weights to change", None),
    ],
)
def test_what_checkov_leaves_out_needs_a_reason(tmp_path, comment, line):
    (tmp_path / "main.tf").write_text(f"{comment}\n", encoding="utf-8")
    assert [each.line for each in check_skips(Folder("", ()), tmp_path)] == [line] * bool(line)


def test_a_file_that_does_not_parse_is_named(tmp_path, capsys):
    folder = tmp_path / "terraform" / "modules" / "broken"
    folder.mkdir(parents=True)
    (folder / "main.tf").write_text('resource "a" {\n  b = = 1\n}\n', encoding="utf-8")
    (tmp_path / "constraints.txt").write_text("ray==1.0.0\n", encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    assert "terraform/modules/broken/main.tf" in capsys.readouterr().out


def test_a_repository_without_files_is_no_success(tmp_path, capsys):
    (tmp_path / "constraints.txt").write_text("ray==1.0.0\n", encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    assert "found no *.tf" in capsys.readouterr().out
