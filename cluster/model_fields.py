"""Typed reading of a model's description, whichever file it comes from.

Owns what a size, a number, a token id may look like, and the message when it does not. Knows no
key by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chairlift.cluster.errors import ModelError

__all__ = ["Fields"]

_MAX_SIZE = 1 << 24
"""No size of a known model comes near; damage easily does."""
_MAX_SHOWN = 80
"""Characters of a value in a message."""


class Fields:
    """A mapping whose values are checked when they are read; null counts as absent.

    Every method raises ModelError, one line that names the file, the key and the value.
    """

    def __init__(self, source: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self._source = source
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def error(self, problem: str) -> ModelError:
        return ModelError(f"{self._source}: {problem}")

    def unsupported(self, key: str) -> ModelError:
        """The value makes it a model that Chairlift does not compute."""
        return self.error(f"{self._prefix}{key} = {_shown(self.get(key))} is not supported")

    def size(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = _MAX_SIZE
    ) -> int:
        value = self._or_default(key, default)
        if not _is_integer(value) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return int(value)

    def size_in_layers(self, key: str, default: int | None = None) -> int:
        """A size, or a list with the size in each layer; unsupported when they differ."""
        value = self.get(key)
        if not isinstance(value, list):
            return self.size(key, default)
        if len(set(value)) != 1:
            raise self.unsupported(key)
        return Fields(self._source, {self._prefix + key: value[0]}, self._prefix).size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._or_default(key, default)
        if not _is_number(value) or value <= 0:
            raise self._wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; none when absent."""
        value = self._or_default(key, ())
        if not isinstance(value, list | tuple):
            raise self._wrong(key, "a list")
        return list(value)

    def token_ids(self, key: str, vocab_size: int) -> list[int]:
        """One token id or a list of them; none when absent."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_integer(token) and 0 <= token < vocab_size for token in ids):
            raise self._wrong(key, f"token ids below {vocab_size}")
        return ids

    def section(self, key: str) -> Fields:
        """A mapping inside this one; empty when absent."""
        value = self._or_default(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "a mapping")
        return Fields(f"{self._source}: {self._prefix}{key}", value)

    def numbers(self, *, skip: frozenset[str]) -> dict[str, float]:
        """All values but those under ``skip``, every one a finite number."""
        kept = {key: value for key, value in self._values.items() if key not in skip}
        for key, value in kept.items():
            if value is not None and not _is_number(value) and not isinstance(value, bool):
                raise self._wrong(key, "a number")
        return {key: float(value) for key, value in kept.items() if value is not None}

    def _or_default(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise self.error(f"{self._prefix}{key} is missing; download the file again")
        return default if value is None else value

    def _wrong(self, key: str, expected: str) -> ModelError:
        return self.error(
            f"{self._prefix}{key} is {_shown(self.get(key))}, expected {expected};"
            " download the file again"
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_integer(value) and abs(value) < 1 << 64) or (
        isinstance(value, float) and math.isfinite(value)
    )
