"""Jinja for somebody else's templates: what they may do, for how long, and how much they may write.

Owns the bounds on one rendering. Jinja's own sandbox keeps a template from reaching Python, but
lets it loop for ever and fill the memory. Here a rendering has so many *steps*: one for each turn
of a loop, each call and each filter, and one more for every 1024 characters that come out
of it (or 16 entries of a list). What would make much out of little (a product, a width, a join)
is refused before it is made. So steps bound time and memory, and what passes on one machine passes
on every other, as it would not by a clock.

    for x in …      → for x in … | count steps
    a ~ b           → [a, b] | concatenate
    a == b, a[1:]   → a == (b | weigh), a[1:] | weigh

It knows neither messages nor models.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_STEPS", "MAX_TEXT", "BoundedEnvironment"]

MAX_STEPS = 500_000
"""Less than a second; what a conversation of a thousand turns takes is some thousands."""
MAX_TEXT = 16 * 1024**2
"""Characters of anything that a rendering makes, its output included."""
MAX_ENTRIES = 1024**2
MAX_RANGE = 10_000
MAX_WIDTH = 1000
MAX_BITS = 4096
MAX_DEPTH = 100
"""Nodes within nodes; to compile what is deeper takes ever longer."""
MAX_FORMAT = 4096
CHARACTERS_PER_STEP = 1024
ENTRIES_PER_STEP = 16
ENTRY = 16
"""Characters that an entry of a list counts for, besides what it holds."""

_COUNT, _CONCATENATE, _WEIGH = "count steps", "concatenate pieces", "weigh result"
"""Names that no template can write."""
_WIDE = re.compile(r"\d{5,}|\*|\{[^}]*\{")
"""In a format: what may make long text out of nothing."""
_WRITERS = frozenset("escape e forceescape format join string tojson urlencode".split())
"""Filters whose text is as long as all that is within what they are given."""
_WIDENERS = frozenset("batch center indent slice tojson".split())
_WIDENING_METHODS = frozenset("center expandtabs ljust rjust zfill".split())
_LEFT_OUT = frozenset("pprint urlize wordwrap xmlattr".split())
"""Filters that no chat needs, and whose text nothing here bounds."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose renderings end; threads may share it.

    Beyond the bounds, templates raise SecurityError.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, extensions: Sequence[Any]) -> None:
        self._run = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Optimised, a template would run in part while it is compiled, out of bounds.
            optimized=False,
            finalize=self._checked,
            extensions=extensions,
        )
        del self.globals["lipsum"]
        self.globals["range"] = _short_range
        self.filters = {
            name: self._bounded(name, each)
            for name, each in self.filters.items()
            if name not in _LEFT_OUT
        }
        self.filters[_COUNT] = self._counted
        self.filters[_WEIGH] = self._weighed
        self.filters[_CONCATENATE] = self._concatenated
        # With this Jinja joins what macros and blocks write.
        self.concat = self._concatenated  # type: ignore[method-assign]  # Jinja means it

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """A filter of the same bounds as Jinja's own."""
        self.filters[name] = self._bounded(name, function)

    def rendered(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The output of one of this environment's templates."""
        self._run.steps = 0
        pieces: list[str] = []
        written = 0
        for piece in template.generate(variables):
            written += len(piece)
            self._spend(1 + len(piece) // CHARACTERS_PER_STEP)
            _check_size(written)
            pieces.append(piece)
        return "".join(pieces)

    # So named, these leave all other names to the template's own arguments.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(__obj, LoopContext) and args:
            args = (__self._counted(args[0]), *args[1:])
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        _check_method(owner, name, (*args, *kwargs.values()))
        return __self._weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_bits(abs(right) * _bits(left))
        elif operator == "*":
            _check_bits(_bits(left) + _bits(right))
            for many, times in ((left, right), (right, left)):
                if isinstance(many, Sized) and isinstance(times, int):
                    limit = MAX_TEXT if isinstance(many, str) else MAX_ENTRIES
                    _check_size(len(many) * times, limit)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        return self._weighed(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        self._run.steps = 0  # constants are made now
        return super()._generate(_Bounds().visit(source), *args, **kwargs)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)  # with the marks by which Jinja knows what else to pass
        def bounded(*args: Any, **kwargs: Any) -> Any:
            given = args[1:] if hasattr(function, "jinja_pass_arg") else args
            given = (*given, *kwargs.values())
            if name in _WRITERS:
                self._checked(given)
            if name in _WIDENERS:
                _check_widths(_size_within(given[0]), given[1:])
            if name == "join" and len(given) > 1:
                given = (given[1], given[0])
            _check_method(given[0], name, given[1:])
            made = function(*args, **kwargs)
            return self._counted(made) if isinstance(made, Iterator) else self._weighed(made)

        return bounded

    def _spend(self, steps: int) -> None:
        self._run.steps = spent = getattr(self._run, "steps", 0) + steps
        if spent > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._spend(1)
            yield value

    def _weighed(self, value: Any) -> Any:
        if isinstance(value, str):
            _check_size(len(value))
            self._spend(1 + len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | tuple | dict):
            _check_size(len(value), MAX_ENTRIES)
            self._spend(1 + len(value) // ENTRIES_PER_STEP)
        else:
            self._spend(1)
        return value

    def _checked(self, value: Any) -> Any:
        """As it is, if its text is within bounds."""
        if not isinstance(value, str):
            self._spend(_size_within(value) // CHARACTERS_PER_STEP)
        return value

    def _concatenated(self, pieces: Iterable[Any]) -> str:
        texts = [piece if isinstance(piece, str) else str(self._checked(piece)) for piece in pieces]
        _check_size(sum(map(len, texts)))
        joined: str = self._weighed("".join(texts))
        return joined


class _Bounds(NodeTransformer):
    """Puts the bounds where Jinja has no hook for them; goes down to a depth only."""

    _depth = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if self._depth > MAX_DEPTH:
            raise jinja2.TemplateSyntaxError(f"nested more than {MAX_DEPTH} deep", node.lineno)
        self._depth += 1
        visited = super().visit(node, *args, **kwargs)
        self._depth -= 1
        return visited

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _COUNT)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCATENATE)

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _WEIGH)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _WEIGH) if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _short_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"range: more than {MAX_RANGE} numbers")
    return numbers


def _check_size(size: int, limit: int = MAX_TEXT) -> None:
    if size > limit:
        raise SecurityError(f"it makes more than {limit} characters or entries")


def _check_widths(size: int, values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int):
            if value > MAX_WIDTH:
                raise SecurityError(f"it uses a width beyond {MAX_WIDTH}")
            _check_size(size * value)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(bits: Any) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"it makes a number of more than {MAX_BITS} bits")


def _check_method(owner: Any, name: str, args: Sequence[Any]) -> None:
    """What a method of text, or a filter of the same name, would make."""
    if isinstance(owner, bytes) or name in ("translate", "to_bytes"):
        raise SecurityError(f"it may not use {name}")
    if not isinstance(owner, str):
        return
    if name in ("format", "format_map"):
        _check_format(owner, args)
    elif name in _WIDENING_METHODS:
        _check_widths(len(owner), args)
    elif name == "replace" and len(args) > 1:
        old, new = str(args[0]), str(args[1])
        _check_size(len(owner) + owner.count(old) * max(len(new) - len(old), 0))
    elif name == "join" and args and isinstance(args[0], Sized):
        _check_size(_size_within(args[0]) + len(owner) * len(args[0]))


def _check_format(form: str, values: Any) -> None:
    if len(form) > MAX_FORMAT or _WIDE.search(form):
        raise SecurityError("it formats with a width, or by a text, that may get too long")
    _check_size(_size_within(values) * (1 + len(form) // 2))


def _size_within(value: Any) -> int:
    """About how long its text would be; containers in containers are gone through."""
    size, open_ = 0, [value]
    while open_:
        match open_.pop():
            case str(text):
                size += len(text)
            case list(items) | tuple(items):
                size += ENTRY * len(items)
                open_ += items
            case dict(fields):
                size += ENTRY * len(fields)
                open_ += [*fields.keys(), *fields.values()]
            case _:
                size += 1
        _check_size(size)
    return size
