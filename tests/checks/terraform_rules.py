"""What must hold between the parts of Terraform's files, whatever they describe.

Variables and outputs explain themselves, references lead somewhere, nothing is left over, calls of
modules fit, versions are pinned, and what is also said elsewhere in the repository is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from chairlift.cluster.config import GrpcConfig, HttpConfig
from checks.source import Violation
from checks.terraform_read import Block, Folder, literal, references

__all__ = ["check_agreement", "check_folder", "check_providers", "check_templates"]

_TEMPLATE = re.compile(r'templatefile\("\$\{path\.module\}/([^"]+)", \{')
_PLACEHOLDER = re.compile(r"(?<!\$)\$\{(\w+)\}")


def check_folder(folder: Folder, folders: Mapping[str, Folder]) -> Iterator[Violation]:
    """All rules that look at one folder, and at the modules that it calls."""
    checks: Sequence[Callable[[Folder], Iterator[Violation]]] = (
        _check_variables,
        _check_outputs,
        _check_references,
        _check_unused,
    )
    for check in checks:
        yield from check(folder)
    yield from _check_calls(folder, folders)


def _check_variables(folder: Folder) -> Iterator[Violation]:
    passed_on = {
        found.name
        for call in folder.of("module")
        for name, value in call.body.items()
        for found in references(value)
        if found.kind == "var" and found.name == name  # the module validates it
    }
    for block in folder.of("variable"):
        for field in ("type", "description"):
            if not block.body.get(field):
                yield block.violation(f"has no {field}")
        limited = block.body.get("type") == "${number}" or "cidr" in block.name
        limited = limited or block.body.get("type") == "number"
        if folder.is_module and limited and block.name not in passed_on:
            if "validation" not in block.body:
                yield block.violation("has limits and no validation of them")


def _check_outputs(folder: Folder) -> Iterator[Violation]:
    for block in folder.of("output"):
        if not block.body.get("description"):
            yield block.violation("has no description")


def _check_references(folder: Folder) -> Iterator[Violation]:
    known = {("var", "", block.name) for block in folder.of("variable")}
    known |= {("local", "", name) for name in folder.locals}
    known |= {("module", "", block.name) for block in folder.of("module")}
    known |= {(b.kind, b.type, b.name) for b in folder.of("data", "ephemeral", "resource")}
    for block in folder.blocks:
        loops = set(_loops(block.body))
        for found in block.references:
            if found.kind == "resource" and found.type in loops:  # dynamic "x" has x.key, x.value
                continue
            if (found.kind, found.type, found.name) not in known:
                what = ".".join(filter(None, (found.kind, found.type, found.name)))
                yield block.violation(f"{what} is not there")


def _loops(value: Any) -> Iterator[str]:
    for dynamic in value.get("dynamic", []) if isinstance(value, Mapping) else []:
        yield from dynamic
    for inner in value.values() if isinstance(value, Mapping) else value:
        if isinstance(inner, Mapping | list):
            yield from _loops(inner)


def _check_unused(folder: Folder) -> Iterator[Violation]:
    used = {
        (found.kind, found.type, found.name)
        for block in folder.blocks
        if block.kind != "variable"  # a validation is no use
        for found in block.references
    }
    for block in folder.of("variable"):
        if ("var", "", block.name) not in used:
            yield block.violation("is not used")
    for block in folder.of("data", "ephemeral"):
        if (block.kind, block.type, block.name) not in used:
            yield block.violation("is not used")
    for name, (block, _) in folder.locals.items():
        if ("local", "", name) not in used:
            yield block.violation(f"{name} is not used")


def _check_calls(folder: Folder, folders: Mapping[str, Folder]) -> Iterator[Violation]:
    called = {}
    for block in folder.of("module"):
        target = folders.get(normpath(PurePosixPath(folder.path) / str(block.body.get("source"))))
        if target is None:
            yield block.violation(f"source {block.body.get('source')} is no module here")
            continue
        called[block.name] = target
        variables = {each.name: each for each in target.of("variable")}
        given = block.body.keys() - {"source", "count", "for_each", "depends_on", "providers"}
        for name in sorted(given - variables.keys()):
            yield block.violation(f"{name} is no variable of {target.path}")
        for name, variable in variables.items():
            if "default" not in variable.body and name not in given:
                yield block.violation(f"{name} of {target.path} is not given")
    for block in folder.blocks:
        for found in block.references:
            target = called.get(found.name) if found.kind == "module" else None
            if target and found.attribute not in {each.name for each in target.of("output")}:
                yield block.violation(f"{target.path} has no output {found.attribute}")


def check_providers(folders: Sequence[Folder]) -> Iterator[Violation]:
    """Each folder lists the providers that it uses, and only these; all have the same versions."""
    versions: dict[str, str] = {}
    for folder in folders:
        blocks = list(folder.of("terraform"))
        if len(blocks) != 1:
            yield Violation(folder.path, 1, "wants one terraform block")
            continue
        [block] = blocks
        if not block.body.get("required_version"):
            yield block.violation("has no required_version")
        [listed] = block.body.get("required_providers", [{}])
        for name, each in listed.items():
            version = str(each.get("version", ""))
            if not re.fullmatch(r"~> \d+\.\d+", version):
                yield block.violation(f"{name} is not pinned as ~> MAJOR.MINOR")
            if versions.setdefault(name, version) != version:
                yield block.violation(f"{name} is {version} here and {versions[name]} elsewhere")
        yield from _check_use(folder, block, listed.keys())


def _check_use(folder: Folder, block: Block, listed: Set[str]) -> Iterator[Violation]:
    used = {each.type.partition("_")[0] for each in folder.of("resource", "data", "ephemeral")}
    used |= {each.name for each in folder.of("provider")}
    for name in sorted(used - listed):
        yield block.violation(f"{name} is used and not listed")
    for name in sorted(listed - used):
        yield block.violation(f"{name} is listed and not used")
    for chart in folder.of("resource"):
        version = str(chart.body.get("version", ""))
        if chart.type == "helm_release" and not re.fullmatch(r"v?\d+\.\d+\.\d+", version):
            yield chart.violation("its chart is not pinned to one version")


def check_templates(folder: Folder, root: Path) -> Iterator[Violation]:
    """What a template asks for is what it is given."""
    for block in folder.blocks:
        for source, keys in _templates(block):
            path = root / folder.path / source
            if not path.is_file():
                yield block.violation(f"{source} is not there")
                continue
            asked = set(_PLACEHOLDER.findall(path.read_text(encoding="utf-8")))
            for name in sorted(asked ^ keys):
                word = "asked for and not given" if name in asked else "given and not asked for"
                yield block.violation(f"{name} is {word} in {source}")


def _templates(block: Block) -> Iterator[tuple[str, set[str]]]:
    text = str(block.body)
    for start in _TEMPLATE.finditer(text):
        depth, position, plain = 1, start.end(), ""
        while depth and position < len(text):
            letter = text[position]
            depth += (letter in "{(") - (letter in ")}")
            plain += letter if depth == 1 else ""
            position += 1
        yield start[1], set(re.findall(r"(?:^|,)\s*(\w+)\s*=(?!=)", plain))


def check_agreement(folders: Mapping[str, Folder], root: Path) -> Iterator[Violation]:
    """Ports are those of cluster/config, Ray's version the one of constraints.txt."""
    http = HttpConfig()
    _, grpc = GrpcConfig().address(http)
    pinned = re.search(r"^ray==(\S+)$", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    for folder in folders.values():
        for block in folder.of("variable"):
            default = literal(block.body.get("default"))
            if block.name == "http_port" and default not in (None, http.port):
                yield block.violation(f"cluster/config has {http.port}")
            if block.name == "ray_version" and (pinned is None or default != pinned[1]):
                yield block.violation("constraints.txt has another one")
        for name, (block, value) in folder.locals.items():
            if name == "http_port" and literal(value) != http.port:
                yield block.violation(f"http_port: cluster/config has {http.port}")
        for block in folder.blocks:
            for step in re.findall(r"http_port \+ (\d+)", str(block.body)):
                if int(step) != grpc - http.port:
                    yield block.violation(f"cluster/config has gRPC {grpc - http.port} above HTTP")
