"""Draws what filling a replica brings and costs: one SVG file with three panels.

Owns how it looks; needs matplotlib, which the extra ``plots`` brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from chairlift.evaluation.utilisation import Point

__all__ = ["draw"]

_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.markersize": 4,
    "svg.fonttype": "none",
    "svg.hashsalt": "utilisation",  # the same figures give the same file
}
_COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
_PANELS: tuple[tuple[str, Callable[[Point], float], float | None, bool], ...] = (
    ("tokens/s", lambda point: point.tokens_per_s, None, False),
    ("first token p99, s", lambda point: point.first_token_p99_s, 2.0, True),
    ("time per token p99, ms", lambda point: 1e3 * point.per_token_p99_s, 100.0, False),
)
"""What is over the load, its target, and whether its axis is logarithmic."""


def draw(points: Sequence[Point], file: Path) -> None:
    """A line for each setting; filled where the Guard would have moved, dashes at the limits."""
    settings = list(dict.fromkeys(point.setting for point in points))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.5, 3.4), layout="constrained")
        for number, (upwards, value, limit, logarithmic) in enumerate(_PANELS, start=1):
            axes = figure.add_subplot(1, len(_PANELS), number)
            for setting, colour in zip(settings, _COLOURS, strict=False):
                line = [point for point in points if point.setting == setting]
                loads, values = [each.load for each in line], [value(each) for each in line]
                axes.plot(loads, values, color=colour, label=f"{setting.seats} seats")
                for each, height in zip(line, values, strict=True):
                    fill = colour if each.moved_at_s is not None else "white"
                    axes.plot(each.load, height, "o", color=colour, markerfacecolor=fill)
            if limit is not None:
                axes.axhline(limit, color="#555555", linestyle="--", linewidth=1)
            if logarithmic:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlabel("load, of what the setting can serve")
            axes.set_ylabel(upwards)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        figure.savefig(file, metadata={"Date": None})
