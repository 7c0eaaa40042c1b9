"""The tables of inputs and outputs in each module's README are those of its code.

``PYTHONPATH=tests python -m checks.terraform --write`` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.source import Violation
from checks.terraform_read import Block, Folder

__all__ = ["check_tables", "tables", "write_tables"]

_START = "<!-- inputs and outputs: written by `python -m checks.terraform --write` -->\n"
_END = "<!-- end -->\n"
_TABLES = re.compile(f"{re.escape(_START)}.*?{re.escape(_END)}", re.DOTALL)


def tables(folder: Folder) -> str:
    """Everything between the marks, and these."""
    inputs = [
        f"| `{block.name}` | {block.body.get('description', '')} "
        f"| `{_type(block)}` | {_default(block)} |"
        for block in folder.of("variable")
    ]
    outputs = [
        f"| `{block.name}` | {block.body.get('description', '')} |" for block in folder.of("output")
    ]
    lines = ["| input | what it is | type | default |", "|---|---|---|---|", *inputs]
    if outputs:
        lines += ["", "| output | what it is |", "|---|---|", *outputs]
    return "\n".join([_START, *lines, "", _END])


def check_tables(folder: Folder, root: Path) -> Iterator[Violation]:
    if not folder.is_module:
        return
    readme = root / folder.path / "README.md"
    name = readme.relative_to(root).as_posix()
    if not readme.is_file():
        yield Violation(name, 1, "is missing")
        return
    text = readme.read_text(encoding="utf-8")
    found = _TABLES.search(text)
    if found is None or found[0] != tables(folder):
        line = text[: found.start()].count("\n") + 1 if found else 1
        yield Violation(name, line, "tables differ from the code; --write writes them")


def write_tables(folder: Folder, root: Path) -> None:
    """Put them in the place of the old ones, or at the end."""
    if not folder.is_module:
        return
    readme = root / folder.path / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    new = tables(folder)
    if _TABLES.search(text):
        text = _TABLES.sub(lambda _: new, text)
    else:
        text = f"{text.rstrip()}\n\n{new}".lstrip()
    readme.write_text(text, encoding="utf-8")


def _type(block: Block) -> str:
    text = str(block.body.get("type", "")).removeprefix("${").removesuffix("}")
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _default(block: Block) -> str:
    if "default" not in block.body:
        return "**required**"
    return f"`{_plain(block.body['default'])}`"


def _plain(value: Any) -> str:
    if isinstance(value, str) and value.startswith("${"):
        return value[2:-1]
    return json.dumps(value)
