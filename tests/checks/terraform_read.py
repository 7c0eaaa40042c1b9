"""What the Terraform checks read: folders of ``.tf`` files, parsed into blocks.

Owns how HCL becomes blocks with a place in a file, and how references are found in expressions. It
knows none of the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2
from hcl2 import SerializationOptions

from checks.source import Violation

__all__ = [
    "Block",
    "Folder",
    "Reference",
    "literal",
    "nested",
    "read_blocks",
    "read_folders",
    "references",
]

_OPTIONS = SerializationOptions(
    with_comments=False, explicit_blocks=False, strip_string_quotes=True
)
_LABELS = {"resource": 2, "data": 2, "ephemeral": 2, "variable": 1, "output": 1, "module": 1}
_LABELS |= {"provider": 1, "terraform": 0, "locals": 0}
_INDEX = r"(?:\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*\])?"
_REFERENCE = re.compile(
    rf"""(?<![\w."/-])(?:
        (?P<plain>var|local)\.(?P<name>\w+)
      | module\.(?P<module>\w+){_INDEX}\.(?P<output>\w+)
      | (?P<kind>data|ephemeral)\.(?P<ktype>\w+)\.(?P<kname>\w+){_INDEX}(?:\.(?P<kattribute>\w+))?
      | (?P<type>[a-z]+_\w+)\.(?P<rname>\w+){_INDEX}(?:\.(?P<attribute>\w+))?
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """``var.a``, ``local.a``, ``module.a.b``, ``data.t.a.b``, ``t.a.b``.

    ``kind`` is var, local, module, data, ephemeral or resource; ``attribute`` may be missing.
    """

    kind: str
    type: str
    name: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One block; ``body`` has expressions as ``${…}`` and inner blocks as lists of bodies."""

    kind: str
    labels: tuple[str, ...]
    body: Mapping[str, Any]
    file: str
    line: int
    references: tuple[Reference, ...]

    @property
    def name(self) -> str:
        return self.labels[-1] if self.labels else ""

    @property
    def type(self) -> str:
        return self.labels[0] if self.labels else ""

    def violation(self, message: str) -> Violation:
        place = " ".join([self.kind, *self.labels])
        return Violation(self.file, self.line, f"{place}: {message}")


@dataclass(frozen=True, slots=True)
class Folder:
    """One module or example; ``path`` is from the repository's root."""

    path: str
    blocks: tuple[Block, ...]

    def of(self, *kinds: str) -> Iterator[Block]:
        return (block for block in self.blocks if block.kind in kinds)

    @property
    def locals(self) -> dict[str, tuple[Block, Any]]:
        """Name → its block and expression."""
        return {
            name: (each, value) for each in self.of("locals") for name, value in each.body.items()
        }

    @property
    def is_module(self) -> bool:
        return "/modules/" in f"/{self.path}/"


def read_folders(root: Path) -> tuple[list[Folder], list[Violation]]:
    """Every folder below ``terraform`` with ``.tf`` files; what does not parse comes back too."""
    folders, violations = [], []
    for path in sorted({each.parent for each in (root / "terraform").rglob("*.tf")}):
        blocks: list[Block] = []
        for file in sorted(path.glob("*.tf")):
            name = file.relative_to(root).as_posix()
            try:
                blocks += read_blocks(name, file.read_text(encoding="utf-8"))
            except Exception as error:  # the parser's own are of many classes
                line = getattr(error, "line", 1)
                violations.append(Violation(name, line, f"does not parse: {error}".split("\n")[0]))
        folders.append(Folder(path.relative_to(root).as_posix(), tuple(blocks)))
    return folders, violations


def read_blocks(file: str, text: str) -> Iterator[Block]:
    """The blocks of one file; raises what the parser raises."""
    for kind, bodies in hcl2.loads(text, serialization_options=_OPTIONS).items():
        for body in bodies:
            labels = []
            for _ in range(_LABELS.get(kind, 0)):
                [(label, body)] = body.items()
                labels.append(label)
            head = kind + "".join(rf'\s+"{re.escape(label)}"' for label in labels)
            place = re.search(rf"^{head}\s*\{{", text, re.MULTILINE)
            line = text[: place.start()].count("\n") + 1 if place else 1
            yield Block(kind, tuple(labels), body, file, line, tuple(references(body)))


def references(value: Any) -> Iterator[Reference]:
    """All of an expression, a body or a list, however deep."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from references(key)
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
    elif isinstance(value, str) and "${" in value:
        for found in _REFERENCE.finditer(value):
            yield _reference(found)


def _reference(found: re.Match[str]) -> Reference:
    if found["plain"]:
        return Reference(found["plain"], "", found["name"])
    if found["module"]:
        return Reference("module", "", found["module"], found["output"])
    if found["kind"]:
        return Reference(found["kind"], found["ktype"], found["kname"], found["kattribute"])
    return Reference("resource", found["type"], found["rname"], found["attribute"])


def literal(value: Any) -> Any:
    """The value where it needs no evaluation, else None."""
    return None if isinstance(value, str) and "${" in value else value


def nested(body: Mapping[str, Any], path: str) -> list[Any]:
    """All values at ``a.b.c``, through inner blocks and what ``dynamic`` makes of them."""
    head, _, rest = path.partition(".")
    values: list[Any] = []
    if head in body:
        values += body[head] if rest and isinstance(body[head], list) else [body[head]]
    for dynamic in body.get("dynamic", []):
        values += dynamic.get(head, {}).get("content", [])
    if not rest:
        return values
    return [deep for each in values if isinstance(each, Mapping) for deep in nested(each, rest)]
