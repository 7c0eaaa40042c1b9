"""Kinds of command line values that several tools of this folder take."""

from __future__ import annotations

import argparse
import math

__all__ = ["count", "positive"]


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    """A whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value
