"""The points of ``sweep``: which there are, what was found at each, and the tables of that.

Owns the plan and the figures; measures nothing. Three sweeps change one thing each:

    streams    how many sequences decode at once, at a context of 128
    context    how long these are, with one of them and with eight
    prompt     how long a prompt is, of one request at a time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

__all__ = ["OUTPUT", "SWEEPS", "Place", "Point", "SweepReport", "places_within"]

SWEEPS = ("streams", "context", "prompt")
OUTPUT = 34
"""Tokens of a sequence whose decoding is timed: 33 steps after its prompt, 32 times between."""

_STREAMS = (1, 2, 4, 8, 16, 32, 64)
_SHORT = 128
_CONTEXTS = (128, 512, 2000, 4000, 8000)
_CONTEXT_STREAMS = (1, 8)
_PROMPTS = (16, 64, 256, 512, 1000, 2000, 4000)


@dataclass(frozen=True, slots=True)
class Place:
    """Where to measure.

    Attributes:
        streams: sequences at once.
        tokens: of each: the context around which they decode, or the prompt.
    """

    sweep: str
    streams: int
    tokens: int

    @property
    def changed(self) -> int:
        """What the sweep is over."""
        return self.streams if self.sweep == "streams" else self.tokens

    @property
    def decodes(self) -> bool:
        return self.sweep != "prompt"

    @property
    def prompt(self) -> int:
        """Tokens before the output, in the middle of which a context is reached."""
        return max(1, self.tokens - OUTPUT // 2) if self.decodes else self.tokens

    @property
    def output(self) -> int:
        return OUTPUT if self.decodes else 1


@dataclass(frozen=True, slots=True)
class Point:
    """What was found; ``seconds`` are those of a step, or until the first token."""

    kind: str
    place: Place
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        done = self.place.streams if self.place.decodes else self.place.tokens
        return done / self.seconds


def places_within(context_length: int) -> tuple[Place, ...]:
    """All that a model of this context length has room for."""
    planned = (
        *(Place("streams", streams, _SHORT) for streams in _STREAMS),
        *(Place("context", streams, each) for streams in _CONTEXT_STREAMS for each in _CONTEXTS),
        *(Place("prompt", 1, each) for each in _PROMPTS),
    )
    return tuple(place for place in planned if place.prompt + place.output <= context_length)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Everything that was measured, and about what machine."""

    about: Mapping[str, object]
    points: tuple[Point, ...]

    def lines(self, sweep: str) -> dict[str, list[Point]]:
        """The points that belong together, by what tells them from the others of the sweep."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            if point.place.sweep == sweep:
                found.setdefault(_label(point), []).append(point)
        return found

    def tables(self) -> Iterator[Table]:
        for sweep in SWEEPS:
            lines = self.lines(sweep)
            if lines:
                yield _table(sweep, lines)

    def as_json(self) -> dict[str, object]:
        points = [
            {"kind": each.kind, **asdict(each.place), "seconds": each.seconds}
            | {"tokens_per_s": each.tokens_per_s}
            for each in self.points
        ]
        return {"about": dict(self.about), "points": points}


_TITLES = {
    "streams": f"decoding, by streams (context {_SHORT})",
    "context": "decoding, by context",
    "prompt": "one prompt, by its length",
}


def _label(point: Point) -> str:
    if point.place.sweep != "context":
        return point.kind
    return f"{point.kind}, {point.place.streams} stream{'s'[: point.place.streams - 1]}"


def _table(sweep: str, lines: Mapping[str, Sequence[Point]]) -> Table:
    table = Table(title=_TITLES[sweep], title_justify="left")
    table.add_column("prompt length" if sweep == "prompt" else sweep, justify="right")
    time = "first token, ms" if sweep == "prompt" else "ms a step"
    for label in lines:
        table.add_column(f"{label}: tokens/s", justify="right")
        table.add_column(time, justify="right")
    for row in zip(*lines.values(), strict=True):
        cells = [(f"{each.tokens_per_s:.0f}", f"{1e3 * each.seconds:.1f}") for each in row]
        table.add_row(f"{row[0].place.changed:,}", *(cell for pair in cells for cell in pair))
    return table
