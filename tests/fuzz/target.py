"""What is fuzzed: a parser, inputs for it, and how it may say no."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

__all__ = ["Feed", "Refused", "Target", "need"]

Feed = Callable[[bytes], None]
"""Takes one input. Returns where it is accepted; raises one of the target's refusals, or else it
has found a fault."""


class Refused(Exception):
    """The parser said no in the way that is documented; for those that do so without raising."""


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        name: as the command line and the table have it.
        inputs: made in a scratch folder, once.
        open: makes what is fed, which may keep files in the same folder until it is left.
        refusals: the documented errors.
    """

    name: str
    inputs: Callable[[Path], st.SearchStrategy[bytes]]
    open: Callable[[Path], AbstractContextManager[Feed]]
    refusals: tuple[type[Exception], ...] = (Refused,)


def need(condition: object, what: str) -> None:
    """AssertionError with a reason; for what holds of refusals and of what was accepted."""
    if not condition:
        raise AssertionError(what)
