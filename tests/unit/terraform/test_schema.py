import io
import json

from checks import terraform_schema
from checks.terraform_schema import compact, main

PRINTED = {
    "format_version": "1.0",
    "provider_schemas": {
        "registry.terraform.io/hashicorp/aws": {
            "resource_schemas": {
                "aws_thing": {
                    "version": 0,
                    "block": {
                        "attributes": {
                            "arn": {"type": "string", "computed": True},
                            "id": {"type": "string", "optional": True, "computed": True},
                            "name": {"type": "string", "required": True},
                        },
                        "block_types": {
                            "part": {
                                "nesting_mode": "list",
                                "min_items": 1,
                                "block": {
                                    "attributes": {
                                        "size": {"type": "number", "optional": True},
                                        "made": {"type": "string", "computed": True},
                                    }
                                },
                            }
                        },
                    },
                },
                "aws_other": {"version": 0, "block": {}},
            }
        }
    },
}
THING = {
    "computed": "arn",
    "optional": "id",
    "required": "name",
    "blocks": {"part": [1, {"optional": "size"}]},
}


def test_what_terraform_prints_of_a_provider_becomes_what_the_check_reads():
    used = {"resource": {"aws_thing"}, "data": set(), "ephemeral": set()}
    assert compact(PRINTED, used) == {
        "resource": {"aws_thing": THING},
        "data": {},
        "ephemeral": {},
    }


def test_the_file_is_written_of_the_types_that_are_used(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "terraform"
    folder.mkdir()
    text = 'resource "aws_thing" "a" {}\nresource "aws_lost" "b" {}\n'
    (folder / "main.tf").write_text(text, encoding="utf-8")
    monkeypatch.setattr(terraform_schema, "_FILE", tmp_path / "schema.json")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(PRINTED)))
    assert main([str(tmp_path)]) == 1
    assert "missing: aws_lost" in capsys.readouterr().out
    written = terraform_schema.load_schema(tmp_path / "schema.json")
    assert written == {"resource": {"aws_thing": THING}, "data": {}, "ephemeral": {}}
