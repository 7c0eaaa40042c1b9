"""What the checks read: the repository's own Python files, parsed.

Owns which files count and how a violation is printed. It knows none of the rules.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GENERATED", "PRODUCT", "Source", "Violation", "dotted", "read_sources"]

PRODUCT = (
    "chairlift",
    "client",
    "cluster",
    "deployments",
    "evaluation",
    "kernels",
    "router",
    "workers",
)
GENERATED = ("_pb2.py", "_pb2_grpc.py")


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One broken rule, at one place."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file; ``file`` is its path from the repository's root."""

    file: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, file: str, text: str) -> Source:
        return cls(file, text, ast.parse(text, filename=file))

    @property
    def is_product(self) -> bool:
        """False for tests and their tools, which may do some things that the product may not."""
        return self.file.split("/", 1)[0] in PRODUCT

    @property
    def module(self) -> str:
        """The name that it is imported by."""
        name = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return name if name.split(".")[0] == "chairlift" else f"chairlift.{name}"

    def violation(self, node: ast.stmt | ast.expr, message: str) -> Violation:
        return Violation(self.file, node.lineno, message)


def read_sources(root: Path) -> tuple[list[Source], list[Violation]]:
    """Every file once, under its real folder (links are not followed), generated ones left out.

    Files that do not parse come back as violations.
    """
    sources, violations = [], []
    for folder in (*PRODUCT, "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            if path.name.endswith(GENERATED):
                continue
            file = path.relative_to(root).as_posix()
            try:
                sources.append(Source.parse(file, path.read_text(encoding="utf-8")))
            except SyntaxError as error:
                violations.append(Violation(file, error.lineno or 1, error.msg))
    return sources, violations


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` for that expression; subscripts are looked through; None for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = dotted(value)
            return None if before is None else f"{before}.{attribute}"
        case ast.Subscript(value=value):
            return dotted(value)
        case _:
            return None
