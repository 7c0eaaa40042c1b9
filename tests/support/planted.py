"""Parsers with a fault each, for tests of what is to find them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from fuzz.target import Feed, Refused, Target


def _hangs(data: bytes) -> None:
    while True:
        pass


def _grows(data: bytes) -> None:
    kept = []
    while True:
        kept.append(b"x" * (1 << 20))


def _dies(data: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _crashes(data: bytes) -> None:
    raise KeyError("a length that nobody checked")


def _refuses(data: bytes) -> None:
    raise Refused("as it should")


FEEDS: dict[str, Callable[[bytes], None]] = {
    "hangs": _hangs,
    "grows": _grows,
    "dies": _dies,
    "crashes": _crashes,
    "refuses": _refuses,
}


def find(name: str) -> Target:
    @contextmanager
    def open_(scratch: Path) -> Iterator[Feed]:
        yield FEEDS[name]

    return Target(name, lambda scratch: st.just(b"input"), open_)
