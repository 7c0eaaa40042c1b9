"""Terraform's files as they are, read once, and with one mistake planted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from checks.source import Violation
from checks.terraform import check
from checks.terraform_read import Folder, read_blocks, read_folders
from checks.terraform_schema import Schema, load_schema

ROOT = Path(__file__).parents[3]
Planted = Callable[[str, str, str], list[str]]


@pytest.fixture(scope="session")
def folders() -> list[Folder]:
    found, unreadable = read_folders(ROOT)
    assert not unreadable
    return found


@pytest.fixture(scope="session")
def schema() -> Schema:
    return load_schema()


@pytest.fixture(scope="session")
def planted(folders: list[Folder], schema: Schema) -> Planted:
    """What is found after ``old`` has become ``new`` in a file below terraform/."""

    def plant(file: str, old: str, new: str) -> list[str]:
        name = f"terraform/{file}"
        text = (ROOT / name).read_text(encoding="utf-8")
        assert old in text, f"{old!r} is no longer in {name}"
        changed = tuple(read_blocks(name, text.replace(old, new, 1)))
        broken = [
            Folder(each.path, (*(b for b in each.blocks if b.file != name), *changed))
            if each.path == str(Path(name).parent)
            else each
            for each in folders
        ]
        found: list[Violation] = sorted(
            set(check(broken, ROOT, schema, only=str(Path(name).parent)))
        )
        return [str(each) for each in found]

    return plant
