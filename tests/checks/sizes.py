"""How large a module, a function, a class and a list of parameters may be.

A function counts from its ``def`` to its last line, docstring and nested functions included. A
method's ``self`` or ``cls`` is no parameter; ``*args`` and ``**kwargs`` are one each. Overload
signatures are no methods. A kernel of Triton may have any number of parameters, as it has nothing
else. Classes of tests may have any number of methods: a state machine has one
for each rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from checks.source import Source, Violation, dotted

__all__ = ["MAX_FUNCTION", "MAX_METHODS", "MAX_MODULE", "MAX_PARAMETERS", "check_sizes"]

MAX_MODULE = 400
MAX_FUNCTION = 60
MAX_METHODS = 15
MAX_PARAMETERS = 6

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_sizes(source: Source) -> Iterator[Violation]:
    lines = len(source.text.splitlines())
    if lines > MAX_MODULE:
        yield Violation(source.file, lines, f"module has {lines} lines; at most {MAX_MODULE}")
    methods = {
        id(method)
        for owner in ast.walk(source.tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
    }
    for node in ast.walk(source.tree):
        if isinstance(node, _Function):
            yield from _check_function(source, node, is_method=id(node) in methods)
        elif isinstance(node, ast.ClassDef) and source.is_product:
            yield from _check_class(source, node)


def _check_function(source: Source, node: _Function, *, is_method: bool) -> Iterator[Violation]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > MAX_FUNCTION:
        yield source.violation(node, f"{node.name}() has {lines} lines; at most {MAX_FUNCTION}")
    has_self = is_method and "staticmethod" not in map(dotted, node.decorator_list)
    parameters = _count_parameters(node.args) - has_self
    if _is_kernel(node):
        return
    if parameters > MAX_PARAMETERS:
        yield source.violation(
            node, f"{node.name}() has {parameters} parameters; at most {MAX_PARAMETERS}"
        )


def _check_class(source: Source, node: ast.ClassDef) -> Iterator[Violation]:
    methods = sum(isinstance(part, _Function) and not _is_overload(part) for part in node.body)
    if methods > MAX_METHODS:
        yield source.violation(node, f"{node.name} has {methods} methods; at most {MAX_METHODS}")


def _count_parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len(named) + sum(more is not None for more in (arguments.vararg, arguments.kwarg))


def _is_kernel(node: _Function) -> bool:
    return any(
        dotted(d.func if isinstance(d, ast.Call) else d) == "triton.jit"
        for d in node.decorator_list
    )


def _is_overload(node: _Function) -> bool:
    return any((dotted(d) or "").split(".")[-1] == "overload" for d in node.decorator_list)
