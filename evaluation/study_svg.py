"""Small pictures as SVG text: axes, lines, points and bars, coloured by the page's own style.

Owns how values become places in a picture; knows nothing of what they mean. Colours are classes
(``c0`` … of the page around), so that a picture follows light and dark.

       top ┌─────────────┐
           │    panel    │   values → x(), y()
    bottom └─────────────┘
          left         right      labels outside
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLOURS", "HEIGHT", "WIDTH", "Axis", "Panel", "bar", "dot", "line", "picture",
           "steps", "stroke", "text", "thinned"]  # fmt: skip

WIDTH, HEIGHT = 360, 230
"""Of a picture, in pixels where nothing is stretched: readable on a phone as it is."""

COLOURS = 8
"""That the page has; the ninth is the first again."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 38
_TICKS = 5
_NARROW = 1.5
"""Decades; a logarithmic axis that spans fewer has more than the powers of ten."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``; both above 0 where it is logarithmic."""

    label: str
    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, label: str, values: Iterable[float], *, logarithmic: bool = False) -> Axis:
        """Wide enough for the values: from 0, or from the least where it is logarithmic."""
        known = [each for each in values if math.isfinite(each) and (each > 0 or not logarithmic)]
        high = max(known, default=1.0)
        if logarithmic:
            low = min(known, default=0.1)
            return cls(label, low / 1.1, max(high * 1.1, low * 2), True)
        return cls(label, min(0.0, *known) if known else 0.0, high * 1.05 or 1.0)

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.logarithmic:
            value, low, high = (
                math.log(max(each, self.low)) for each in (value, self.low, self.high)
            )
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self) -> list[float]:
        return self._powers() if self.logarithmic else self._even()

    def _even(self) -> list[float]:
        rough = (self.high - self.low) / _TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(each * unit for each in (1, 2, 5, 10) if each * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _powers(self) -> list[float]:
        decades = math.log10(self.high / self.low)
        factors = (1, 2, 5) if decades < _NARROW else (1,)
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        return [each for each in found if self.low <= each <= self.high]


@dataclass(frozen=True, slots=True)
class Panel:
    """Two axes in a picture; ``left``: room for what stands beside the vertical one."""

    x: Axis
    y: Axis
    height: int = HEIGHT
    left: int = _LEFT

    def at(self, point: Point) -> Point:
        width, height = WIDTH - self.left - _RIGHT, self.height - _TOP - _BOTTOM
        across = self.left + width * self.x.share(point[0])
        return across, _TOP + height * (1 - self.y.share(point[1]))


def picture(panel: Panel, marks: Iterable[str], title: str, *, rows: Sequence[str] = ()) -> str:
    """The whole of it; ``rows``: names at heights 0, 1 … in place of the numbers there."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {panel.height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(_axes(panel, rows))}{''.join(marks)}</svg>"
    )


def line(panel: Panel, points: Sequence[Point], colour: int) -> str:
    if not points:
        return ""
    places = " ".join(_place(panel.at(point)) for point in points)
    return f'<polyline class="line s{colour % COLOURS}" points="{places}"/>'


def steps(points: Sequence[Point]) -> list[Point]:
    """A value holds until the next one."""
    found: list[Point] = []
    for point in points:
        if found:
            found.append((point[0], found[-1][1]))
        found.append(point)
    return found


def dot(panel: Panel, point: Point, colour: int, told: str) -> str:
    x, y = panel.at(point)
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="4"'
    return f'<circle class="c{colour % COLOURS}" {place}>{_told(told)}</circle>'


def bar(panel: Panel, corners: tuple[Point, Point], class_: str, told: str = "") -> str:
    """A box between two corners; its class says how it looks."""
    (x0, y0), (x1, y1) = panel.at(corners[0]), panel.at(corners[1])
    return (
        f'<rect class="{class_}" x="{min(x0, x1):.1f}" y="{min(y0, y1):.1f}" '
        f'width="{max(abs(x1 - x0), 0.4):.1f}" height="{abs(y1 - y0):.1f}">{_told(told)}</rect>'
    )


def stroke(panel: Panel, ends: tuple[Point, Point], class_: str) -> str:
    (x0, y0), (x1, y1) = panel.at(ends[0]), panel.at(ends[1])
    return f'<line class="{class_}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def text(place: Point, words: str, anchor: str = "middle") -> str:
    return (
        f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def thinned(values: Sequence[float], most: int) -> list[Point]:
    """The distribution of values, as (value, share at or below), in so many points at most."""
    ordered = sorted(values)
    count = len(ordered)
    ranks = (
        range(count)
        if count <= most
        else (round(i * (count - 1) / (most - 1)) for i in range(most))
    )
    return [(ordered[rank], (rank + 1) / count) for rank in ranks]


def _axes(panel: Panel, rows: Sequence[str]) -> Iterable[str]:
    bottom, right = panel.height - _BOTTOM, WIDTH - _RIGHT
    for tick in panel.x.ticks():
        x, _ = panel.at((tick, panel.y.low))
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield text((x, bottom + 14), f"{tick:g}")
    for height, tick in enumerate(panel.y.ticks() if not rows else range(len(rows))):
        _, y = panel.at((panel.x.low, tick))
        if not rows:
            yield f'<line class="grid" x1="{panel.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield text((panel.left - 5, y + 4), rows[height] if rows else f"{tick:g}", "end")
    yield text(((panel.left + right) / 2, panel.height - 6), panel.x.label)
    if panel.y.label:
        middle = (_TOP + bottom) / 2
        yield (
            f'<text transform="translate(11 {middle:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(panel.y.label)}</text>"
        )


def _place(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _told(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
