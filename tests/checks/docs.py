"""Checks that documents point at what exists, and that each folder's README names its modules.

PYTHONPATH=tests python -m checks.docs [ROOT]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.source import GENERATED, PRODUCT, Violation

__all__ = ["check_links", "check_readmes", "main"]

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
_MODULE = re.compile(r"`(\w+\.py)`")
_NOT_OURS = frozenset(
    {".git", ".terraform", ".venv", ".venv-checkov", ".venv-flash", "build", "node_modules"}
)


def check_links(root: Path) -> Iterator[Violation]:
    """Every relative link of every Markdown file leads to a file or folder."""
    for document in sorted(root.rglob("*.md")):
        if not _NOT_OURS.isdisjoint(document.relative_to(root).parts):
            continue
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
            for target in _LINK.findall(line):
                if not (document.parent / target).exists():
                    yield _violation(root, document, number, f"{target} does not exist")


def check_readmes(root: Path) -> Iterator[Violation]:
    """A folder's README names exactly the modules that lie in the folder."""
    for folder in (root / name for name in PRODUCT if name != "chairlift"):
        readme = folder / "README.md"
        if not readme.is_file():
            yield _violation(root, readme, 1, "is missing")
            continue
        named = set(_MODULE.findall(readme.read_text(encoding="utf-8")))
        present = {
            path.name
            for path in folder.glob("*.py")
            if path.name != "__init__.py" and not path.name.endswith(GENERATED)
        }
        for module in sorted(present - named):
            yield _violation(root, readme, 1, f"does not say what {module} is for")
        for module in sorted(named - present):
            yield _violation(root, readme, 1, f"names {module}, which is not there")


def _violation(root: Path, document: Path, line: int, message: str) -> Violation:
    return Violation(document.relative_to(root).as_posix(), line, message)


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[2]
    violations = [*check_links(root), *check_readmes(root)]
    for violation in violations:
        print(violation)
    print(f"documents: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
