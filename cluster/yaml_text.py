"""YAML that people write, read into plain values, or refused in one line.

Owns the bounds: how deep it may be nested, and to how many values it may come, so that neither
anchors that name each other nor brackets without end cost more than a moment. It knows no settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from chairlift.cluster.errors import ConfigError

__all__ = ["MAX_DEPTH", "MAX_VALUES", "parse_yaml", "read_yaml"]

MAX_DEPTH = 32
MAX_VALUES = 200_000
"""Each counts as often as an anchor brings it; a tenant comes to some ten."""

_REFUSALS = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the library raises; all but the first where a number or date is none."""


def read_yaml(path: Path) -> Any:
    """What a file holds; ConfigError that names it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """What a text says. Raises ConfigError that begins with ``where``."""
    try:
        value = _Loader(text).get_single_data()
    except _REFUSALS as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if _is_too_much(value):
        raise ConfigError(f"{where} comes to more than {MAX_VALUES} values")
    return value


class _Loader(yaml.SafeLoader):
    """The safe loader, which stops at a depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _is_too_much(value: Any) -> bool:
    """Stops counting in time, so a value that holds itself is too much as well."""
    seen, open_ = 0, [value]
    while open_ and seen <= MAX_VALUES:
        seen += 1
        match open_.pop():
            case list(items) | tuple(items) | set(items):
                open_ += items
            case dict(fields):
                open_ += [*fields.keys(), *fields.values()]
    return seen > MAX_VALUES
