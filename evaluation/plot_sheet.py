"""Pictures of ``study_svg`` on one sheet, as a file of its own.

Owns colours, titles and the key, which a page gives them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chairlift.evaluation.study_svg import HEIGHT, WIDTH, Point, text

__all__ = ["sheet"]

_COLOURS = ("#2f7fd0", "#d9822b", "#4d8f72", "#9a5fb8", "#c2485a", "#8a8420", "#2a9d9d", "#8a6a4f")
_STYLE = (
    "svg{font-family:sans-serif;background:#fff}"
    "text{fill:#566373;font-size:11px} .title{fill:#16202c;font-size:12px}"
    ".grid{stroke:#dfe4ea;stroke-width:1} .line{fill:none;stroke-width:1.6;stroke-linejoin:round}"
    ".target{stroke:#16202c;stroke-dasharray:3 4;stroke-width:1}"
)
_TITLE, _KEY = 22, 24


def sheet(rows: Sequence[Sequence[tuple[str, str]]], key: Mapping[str, int]) -> str:
    """Rows of titles and pictures, under the key: names, and the colours that they have."""
    columns = max(len(row) for row in rows)
    width, height = columns * WIDTH, _KEY + len(rows) * (HEIGHT + _TITLE)
    colours = "".join(
        f".c{number}{{fill:{colour}}} .s{number}{{stroke:{colour}}}"
        for number, colour in enumerate(_COLOURS)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f'<style>{_STYLE}{colours}</style><rect width="{width}" height="{height}" fill="#fff"/>',
        *_key(key),
    ]
    for number, row in enumerate(rows):
        top = _KEY + number * (HEIGHT + _TITLE)
        for column, (title, picture) in enumerate(row):
            left = column * WIDTH
            parts.append(
                f'<text class="title" x="{left + WIDTH / 2:.0f}" y="{top + 15}" '
                f'text-anchor="middle">{escape(title)}</text>'
            )
            place = f'<svg x="{left}" y="{top + _TITLE}" width="{WIDTH}" height="{HEIGHT}" '
            parts.append(picture.replace("<svg ", place, 1))
    return "\n".join([*parts, "</svg>\n"])


def _key(key: Mapping[str, int]) -> list[str]:
    parts, left = [], 46.0
    for name, colour in key.items():
        place: Point = (left + 14, 16.0)
        parts.append(f'<rect class="c{colour}" x="{left:.0f}" y="7" width="10" height="10"/>')
        parts.append(text(place, name, "start"))
        left += 34 + 6.2 * len(name)
    return parts
