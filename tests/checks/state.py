"""No module-level mutable state: no caches, registries or counters in globals.

What a module binds at its top level must be one of these:

- a value that cannot change: a number, string, tuple, frozenset, compiled pattern, path, logger,
  type alias, or another name;
- a constant: named in UPPER_CASE (or a ``__dunder__``, or annotated ``Final``), not empty, not of
  a type that exists to be changed (lock, queue, counter, context variable …), and changed neither
  by its own module nor by one that imports it.

``global`` and ``functools.cache`` keep state where no reader sees it, so they are refused as
well, save for the functions in ``EXEMPT``. Mutable class attributes are ruff's business (RUF012).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from checks.source import Source, Violation, dotted

__all__ = ["EXEMPT", "check_state"]

EXEMPT = {
    "deployments/membership.py:process_membership": (
        "Serve builds our request router itself and hands it nothing, so the two sides of a "
        "process can only meet in a global"
    ),
}
"""Where the rule gives way: ``file:function`` → why."""

_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*|__\w+__")

_IMMUTABLE_CALLS = frozenset(
    "MappingProxyType NewType ParamSpec Path PurePath Struct TypeVar TypeVarTuple attrgetter bool "
    "bytes cast compile float frozenset getLogger int itemgetter len max min namedtuple range str "
    "sum timedelta tuple version".split()
)
_CONTAINERS = frozenset({"bytearray", "dict", "list", "set"})
_CHANGING_CALLS = frozenset(
    "ChainMap Condition ContextVar Counter Event Gauge Histogram Lock LifoQueue OrderedDict "
    "PriorityQueue Queue RLock Random Semaphore SimpleQueue WeakKeyDictionary WeakSet "
    "WeakValueDictionary count cycle defaultdict deque local".split()
)
_CHANGING_METHODS = frozenset(
    "add append appendleft clear difference_update discard extend extendleft insert "
    "intersection_update pop popitem popleft remove reverse rotate setdefault sort "
    "symmetric_difference_update update".split()
)
_CACHES = frozenset({"cache", "functools.cache", "functools.lru_cache", "lru_cache"})


def check_state(source: Source) -> Iterator[Violation]:
    constants = _imported_constants(source.tree)
    for statement in _top_level(source.tree.body):
        if isinstance(statement, ast.AugAssign):
            yield source.violation(statement, "a module-level name is changed after it was bound")
            continue
        for name, value, is_final in _bindings(statement):
            if is_final or _CONSTANT.fullmatch(name):
                constants.add(name)
                if _is_made_to_change(value):
                    yield source.violation(statement, f"{name} can only be there to be changed")
            elif not _is_immutable(value):
                yield source.violation(
                    statement,
                    f"{name} is bound to something that can change; name it in UPPER_CASE if it "
                    "never does, else let its user own it",
                )
    yield from _check_changes(source, constants)


def _check_changes(source: Source, constants: set[str]) -> Iterator[Violation]:
    for node in ast.walk(source.tree):
        match node:
            case ast.Global(names=names):
                yield source.violation(node, f"global {', '.join(names)}: pass it in and return it")
            case (
                ast.FunctionDef(decorator_list=decorators)
                | ast.AsyncFunctionDef(decorator_list=decorators)
            ) if f"{source.file}:{node.name}" not in EXEMPT:
                if any(_called(decorator) in _CACHES for decorator in decorators):
                    yield source.violation(node, f"{node.name}() keeps a cache in a global")
            case (
                ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
                | ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
                | ast.AugAssign(target=ast.Name(id=name))
            ) if name in constants:
                yield source.violation(node, f"the constant {name} is changed")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                name in constants and method in _CHANGING_METHODS
            ):
                yield source.violation(node, f"the constant {name} is changed by {method}()")


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import, those inside ``if``, ``try``, ``with`` and loops included."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(statement, field, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _top_level(handler.body)


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr, bool]]:
    """(name, value, annotated Final) of each name that the statement binds."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id, value, False
        case ast.AnnAssign(
            target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value
        ):
            yield name, value, (dotted(annotation) or "").split(".")[-1] == "Final"


def _is_immutable(value: ast.expr) -> bool:
    match value:
        case ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            return all(map(_is_immutable, parts))
        case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
            return _is_immutable(one) and _is_immutable(other)
        case ast.Call():
            return _called(value).split(".")[-1] in _IMMUTABLE_CALLS
        case _:
            return isinstance(
                value,
                ast.Constant
                | ast.JoinedStr
                | ast.Name
                | ast.Attribute
                | ast.Subscript
                | ast.UnaryOp
                | ast.Compare
                | ast.Lambda,
            )


def _is_made_to_change(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(args=arguments, keywords=keywords):
            name = _called(value).split(".")[-1]
            is_empty = not arguments and not keywords
            return name in _CHANGING_CALLS or (name in _CONTAINERS and is_empty)
        case _:
            return False


def _called(node: ast.expr) -> str:
    """``a.b`` for ``a.b`` and for ``a.b(…)``."""
    return dotted(node.func if isinstance(node, ast.Call) else node) or ""


def _imported_constants(tree: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if _CONSTANT.fullmatch(alias.asname or alias.name)
    }
