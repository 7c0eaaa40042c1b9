"""The environment is touched in one place.

Reading it elsewhere hides a setting from the configuration tree; setting it elsewhere hides it
from the reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from checks.source import Source, Violation, dotted

__all__ = ["check_environment"]

_OWNER = "cluster/config.py"
_NAMES = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})


def check_environment(source: Source) -> Iterator[Violation]:
    if source.file == _OWNER:
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(attr=name) if name in _NAMES and dotted(node) == f"os.{name}":
                yield source.violation(node, f"os.{name}: {_OWNER} owns the environment")
            case ast.ImportFrom(module="os", names=names):
                for alias in names:
                    if alias.name in _NAMES:
                        yield source.violation(
                            node, f"os.{alias.name}: {_OWNER} owns the environment"
                        )
