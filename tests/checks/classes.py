"""No mixins; inheritance only where a library or an interface asks for it.

A class has one base, with these exceptions: ``Protocol``, ``Generic`` and ``ABC`` do not count,
and several bases that all come from libraries are what those libraries ask for (``str, Enum``).

A class of ours may be derived from when it is an interface (``Protocol``, ``ABC``, ``TypedDict``),
or when it belongs to a tree of exceptions or of pydantic models.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checks.source import Source, Violation, dotted

__all__ = ["check_classes"]

_INTERFACES = frozenset(
    {"typing.Protocol", "typing_extensions.Protocol", "typing.TypedDict", "abc.ABC"}
)
_NO_BASE = _INTERFACES | {"typing.Generic"}
_TREE_ROOTS = frozenset({"pydantic.BaseModel", "pydantic.RootModel"})


@dataclass(frozen=True, slots=True)
class _Class:
    source: Source
    node: ast.ClassDef
    bases: tuple[str, ...]


def check_classes(sources: Sequence[Source]) -> Iterator[Violation]:
    """Takes all sources together, since a base may stand in another module."""
    ours = {
        f"{source.module}.{node.name}": _Class(source, node, _bases(source, node))
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    for item in ours.values():
        if "mixin" in item.node.name.lower():
            yield item.source.violation(item.node, f"{item.node.name}: no mixins; compose instead")
        yield from _check_bases(item, ours)


def _check_bases(item: _Class, ours: Mapping[str, _Class]) -> Iterator[Violation]:
    bases = [base for base in item.bases if base not in _NO_BASE]
    own = [base for base in bases if base in ours]
    if len(bases) > 1 and own:
        yield item.source.violation(
            item.node, f"{item.node.name} has {len(bases)} bases; one is all that a class may have"
        )
    for base in own:
        if not (_is_interface(ours[base]) or _is_tree(base, ours)):
            yield item.source.violation(
                item.node,
                f"{item.node.name} derives from {base.split('.')[-1]}, which is neither an "
                "interface nor an exception nor a pydantic model; compose instead",
            )


def _is_interface(item: _Class) -> bool:
    return any(base in _INTERFACES for base in item.bases)


def _is_tree(name: str, ours: Mapping[str, _Class]) -> bool:
    """True when the line of first bases ends in an exception or a pydantic model."""
    while name in ours:
        bases = ours[name].bases
        if not bases:
            return False
        name = bases[0]
    builtin = getattr(builtins, name, None)
    is_exception = isinstance(builtin, type) and issubclass(builtin, BaseException)
    return is_exception or name in _TREE_ROOTS or name.endswith(("Error", "Exception"))


def _bases(source: Source, node: ast.ClassDef) -> tuple[str, ...]:
    """Full names; a name that is not imported is of this module, or built in."""
    imported = _imports(source)
    names = []
    for base in node.bases:
        head, _, rest = (dotted(base) or ast.unparse(base)).partition(".")
        if head in imported:
            head = imported[head]
        elif not hasattr(builtins, head):
            head = f"{source.module}.{head}"
        names.append(f"{head}.{rest}" if rest else head)
    return tuple(names)


def _imports(source: Source) -> dict[str, str]:
    """Local name → full name."""
    names = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                names[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names
