"""Checks Terraform's files without Terraform: they parse, fit together, and are closed by default.

PYTHONPATH=tests python -m checks.terraform [--write] [ROOT]

``--write`` writes the tables in the modules' READMEs first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.source import Violation
from checks.terraform_docs import check_tables, write_tables
from checks.terraform_read import Folder, read_folders
from checks.terraform_rules import (
    check_agreement,
    check_folder,
    check_providers,
    check_templates,
)
from checks.terraform_schema import Schema, check_arguments, load_schema
from checks.terraform_security import check_security, check_skips

__all__ = ["check", "main"]


def check(
    folders: Sequence[Folder], root: Path, schema: Schema, only: str | None = None
) -> Iterator[Violation]:
    """All rules; ``root`` has what the folders are to agree with.

    Args:
        folders: all of them, for they call each other.
        root: the repository.
        schema: arguments of each type.
        only: the one folder to look into; what is between folders is looked at in any case.
    """
    by_path = {folder.path: folder for folder in folders}
    for folder in [by_path[only]] if only else folders:
        yield from check_folder(folder, by_path)
        yield from check_arguments(folder, schema)
        yield from check_templates(folder, root)
        yield from check_security(folder, schema)
        yield from check_skips(folder, root)
        yield from check_tables(folder, root)
    yield from check_providers(folders)
    yield from check_agreement(by_path, root)


def main(arguments: Sequence[str]) -> int:
    paths = [each for each in arguments if each != "--write"]
    root = Path(paths[0]) if paths else Path(__file__).parents[2]
    folders, violations = read_folders(root)
    if "--write" in arguments:
        for folder in folders:
            write_tables(folder, root)
    violations += sorted(set(check(folders, root, load_schema())))
    if not folders:
        violations.append(Violation("terraform", 1, "found no *.tf"))
    for violation in violations:
        print(violation)
    print(f"terraform: {len(violations)} violations in {len(folders)} folders")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
