"""Which arguments each type of resource takes, and whether ours are among them.

``terraform_schema.json`` has the types that are used, from the providers themselves. After a
provider or a type is new, in a folder of its own with the providers initialised:

    terraform providers schema -json | PYTHONPATH=tests python -m checks.terraform_schema

A type is ``{"required": "names …", "optional": …, "computed": …, "blocks": {name: [least number,
type]}}``; what is empty is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.source import Violation
from checks.terraform_read import Block, Folder, read_folders

__all__ = ["check_arguments", "compact", "load_schema", "main"]

_FILE = Path(__file__).with_name("terraform_schema.json")
_KINDS = {"resource": "resource_schemas", "data": "data_source_schemas"}
_KINDS |= {"ephemeral": "ephemeral_resource_schemas"}
_MODES = ("required", "optional", "computed")
_META = frozenset(
    {"count", "for_each", "depends_on", "lifecycle", "provider", "provisioner", "connection"}
)

Schema = Mapping[str, Mapping[str, Any]]
"""Kind of block → type → what it takes."""


def load_schema(path: Path = _FILE) -> Schema:
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


def check_arguments(folder: Folder, schema: Schema) -> Iterator[Violation]:
    """Arguments and attributes exist, and nothing that is required is missing."""
    for block in folder.of(*_KINDS):
        known = schema[block.kind].get(block.type)
        if known is None:
            yield block.violation(
                f"{block.type} is not in {_FILE.name}; see checks.terraform_schema"
            )
        else:
            yield from _check_body(block, block.body, known, "")
    declared = {(each.kind, *each.labels) for each in folder.of(*_KINDS)}
    for block in folder.blocks:
        for found in block.references:
            known = schema.get(found.kind, {}).get(found.type)
            if known is None or (found.kind, found.type, found.name) not in declared:
                continue
            if found.attribute and found.attribute not in _names(known, *_MODES, "blocks"):
                yield block.violation(f"{found.type} has no attribute {found.attribute}")


def _check_body(
    block: Block, body: Mapping[str, Any], known: Mapping[str, Any], path: str
) -> Iterator[Violation]:
    arguments, blocks = _names(known, "required", "optional"), known.get("blocks", {})
    given = {name: value for name, value in body.items() if path or name not in _META}
    for dynamic in given.pop("dynamic", []):
        for name, inner in dynamic.items():
            given.setdefault(name, [])
            given[name] = [*given[name], *inner.get("content", [])]
    for name, value in given.items():
        if name in arguments:
            continue
        if name not in blocks:
            yield block.violation(f"{path}{name} is no argument of {block.type}")
            continue
        for inner in value if isinstance(value, list) else [value]:
            yield from _check_body(block, inner, blocks[name][1], f"{path}{name}.")
    required = _names(known, "required") | {name for name, (least, _) in blocks.items() if least}
    for name in sorted(required - given.keys()):
        yield block.violation(f"{path}{name} is required")


def compact(providers: Mapping[str, Any], used: Mapping[str, set[str]]) -> dict[str, Any]:
    """Of ``terraform providers schema -json``, the types that are used and what is asked here."""
    result: dict[str, dict[str, Any]] = {}
    for kind, key in _KINDS.items():
        schemas = {
            name: schema["block"]
            for provider in providers["provider_schemas"].values()
            for name, schema in provider.get(key, {}).items()
        }
        result[kind] = {name: _block(schemas[name]) for name in sorted(used[kind] & schemas.keys())}
    return result


def _block(block: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, each in sorted(block.get("attributes", {}).items()):
        mode = next(mode for mode in _MODES if each.get(mode))
        if mode != "computed" or not depth:
            result[mode] = f"{result[mode]} {name}" if mode in result else name
    blocks = {
        name: [each.get("min_items", 0), _block(each["block"], depth + 1)]
        for name, each in sorted(block.get("block_types", {}).items())
    }
    return {**result, "blocks": blocks} if blocks else result


def _names(known: Mapping[str, Any], *kinds: str) -> set[str]:
    return {
        name
        for kind in kinds
        for name in (known.get(kind, "").split() if kind in _MODES else known.get(kind, {}))
    }


def main(arguments: Sequence[str]) -> int:
    """Write the file anew, of standard input."""
    root = Path(arguments[0]) if arguments else Path(__file__).parents[2]
    folders, _ = read_folders(root)
    used = {
        kind: {block.type for folder in folders for block in folder.of(kind)} for kind in _KINDS
    }
    schema = compact(json.load(sys.stdin), used)
    kinds = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in types.items())
        + "\n}"
        for kind, types in schema.items()
    ]
    _FILE.write_text("{\n" + ",\n".join(kinds) + "\n}\n", encoding="utf-8")
    missing = {name for kind in _KINDS for name in used[kind] - schema[kind].keys()}
    print(
        f"{_FILE.name}: {sum(map(len, schema.values()))} types", *sorted(missing), sep="\nmissing: "
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
