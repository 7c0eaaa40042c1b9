"""Draws a live comparison: what came, and how many replicas each arm had.

Owns how it looks: one SVG file that stands for itself, a picture of ``study_svg`` below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chairlift.evaluation.study_svg import WIDTH, Axis, Panel, bar, line, picture, steps

__all__ = ["draw"]

_PANEL = 130
"""Pixels of a picture's height."""
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.grid{stroke:#ddd}.came{fill:#bbb}"
    ".line{fill:none;stroke-width:2}.s0{stroke:#555}.s1{stroke:#e69f00}.s2{stroke:#cc79a7}"
    ".s3{stroke:#0072b2}"
)


def draw(found: Mapping[str, Any], file: Path) -> None:
    """``found``: as ``autoscaling_report.summary`` makes it."""
    pictures = [_arrivals(found), *_arms(found)]
    placed = [
        each.replace("<svg ", f'<svg y="{place * _PANEL}" width="{WIDTH}" height="{_PANEL}" ', 1)
        for place, each in enumerate(pictures)
    ]
    height = len(pictures) * _PANEL
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{2 * WIDTH}" height="{2 * height}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(placed)}</svg>\n'
    )


def _arrivals(found: Mapping[str, Any]) -> str:
    came = next(iter(found["arms"].values()))["arrivals"]
    panel = Panel(Axis("seconds", 0, len(came)), Axis.over("requests/s", came), height=_PANEL)
    bars = [
        bar(panel, ((second, 0), (second + 1, count)), "came") for second, count in enumerate(came)
    ]
    return picture(panel, bars, "what came")


def _arms(found: Mapping[str, Any]) -> Iterator[str]:
    arms = found["arms"]
    most = max(count for each in arms.values() for _, count in each["replicas"])
    for colour, (arm, each) in enumerate(arms.items()):
        end, course = len(each["arrivals"]), each["replicas"]
        words = f"{arm}: {each['on_time_ratio']:.1%} on time, {each['mean_replicas']:.2f} replicas"
        panel = Panel(Axis(words, 0, end), Axis("replicas", 0, most + 0.5), height=_PANEL)
        points = steps([*((at_s, count) for at_s, count in course), (end, course[-1][1])])
        yield picture(panel, [line(panel, points, colour)], words)
