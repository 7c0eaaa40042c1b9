"""The files of a study: hashes of their bytes, writing that is whole or not at all, and comparison.

Owns no file's meaning. What is compared are trees, as JSON has them; a place in one is named by the
keys on the way to it, with dots between.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from chairlift.cluster.errors import ConfigError

__all__ = ["Change", "changes", "combined_sha256", "flatten", "read_tree", "sha256_of", "to_tree",
           "write_tree", "write_whole"]  # fmt: skip

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Change:
    """A place that two trees have different values at; None where it is not there, too."""

    name: str
    before: Value
    after: Value

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.before)} → {_shown(self.after)}"


def sha256_of(file: Path) -> str:
    """Of a file's bytes. Raises ConfigError where it cannot be read."""
    try:
        with file.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


def combined_sha256(parts: Iterable[tuple[str, bytes]]) -> str:
    """Of named pieces, in their order."""
    digest = hashlib.sha256()
    for name, content in parts:
        digest.update(f"{len(name)} {len(content)} {name}".encode() + content)
    return digest.hexdigest()


def write_whole(file: Path, content: bytes) -> None:
    """So that a reader finds the old bytes or the new ones. Raises ConfigError."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(content)
                target.flush()
                os.fsync(target.fileno())
            Path(name).chmod(0o644)
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None


def write_tree(file: Path, tree: Mapping[str, object]) -> None:
    write_whole(file, orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_tree(file: Path) -> dict[str, object]:
    """Raises ConfigError where it cannot be read or holds no tree."""
    try:
        tree = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} is damaged: it holds no object")
    return tree


def to_tree(parts: object) -> dict[str, object]:
    """Dataclasses and pydantic models, however nested, as JSON would give them back."""
    content = orjson.dumps(parts, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    tree = orjson.loads(content)
    assert isinstance(tree, dict)
    return tree


def flatten(tree: object, name: str = "") -> Iterator[tuple[str, Value]]:
    """Every leaf by its name; what is empty is a leaf too."""
    match tree:
        case dict() if tree:
            for key, value in tree.items():
                yield from flatten(value, f"{name}.{key}" if name else str(key))
        case list() | tuple() if tree:
            for index, value in enumerate(tree):
                yield from flatten(value, f"{name}.{index}" if name else str(index))
        case dict():
            yield name, "{}"
        case list() | tuple():
            yield name, "[]"
        case str() | int() | float() | None:
            yield name, tree
        case _:
            raise TypeError(f"{name}: JSON has no {type(tree).__name__}")


def changes(before: object, after: object) -> list[Change]:
    """Where two trees differ, in the order of the first and then of the second."""
    old, new = dict(flatten(before)), dict(flatten(after))
    return [
        Change(name, old.get(name), new.get(name))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _plain(part: object) -> object:
    dump = getattr(part, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(part, frozenset | set):
        return sorted(part)
    raise TypeError(f"JSON has no {type(part).__name__}")


def _shown(value: Value) -> str:
    if value is None:
        return "nothing"
    return f"{value[:60]}…" if isinstance(value, str) and len(value) > 61 else str(value)
