"""Draws a sweep: three SVG files, one for each sweep, with lines for each kind of arithmetic.

Owns how they look. The only module that imports matplotlib, which the extra ``plots`` brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chairlift.evaluation.sweep_points import SWEEPS, Point, SweepReport

__all__ = ["write_plots"]

_STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.marker": "o",
    "lines.markersize": 4,
    "svg.fonttype": "none",
    "svg.hashsalt": "sweep",  # the same figures give the same file
}
_COLOURS = {"int8": "#0072b2", "float32": "#d55e00"}
_WIDTH, _HEIGHT = 6.25, 3.5
"""Inches: 600 pixels wide at 96 to the inch."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One pair of axes."""

    over: str
    upwards: str
    value: Callable[[Point], float]
    named: int = 0
    """On a logarithmic axis, of how many points one has its number below it; 0: a linear axis."""


def _rate(point: Point) -> float:
    return point.tokens_per_s


_PANELS: Mapping[str, tuple[_Panel, ...]] = {
    "streams": (_Panel("streams that decode at once", "tokens/s, all streams", _rate, named=1),),
    "context": (
        _Panel("context, tokens", "time of a step, ms", lambda point: 1e3 * point.seconds),
    ),
    "prompt": (
        _Panel("prompt length, tokens", "prompt tokens/s", _rate, named=2),
        _Panel("prompt length, tokens", "time to first token, s", lambda point: point.seconds),
    ),
}


def write_plots(report: SweepReport, folder: Path) -> None:
    """Write ``streams.svg``, ``context.svg`` and ``prompt.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for sweep in SWEEPS:
            panels, lines = _PANELS[sweep], report.lines(sweep)
            figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
            for number, panel in enumerate(panels, start=1):
                _draw(figure.add_subplot(1, len(panels), number), panel, lines)
            figure.savefig(folder / f"{sweep}.svg", metadata={"Date": None})


def _draw(axes: Axes, panel: _Panel, lines: Mapping[str, Sequence[Point]]) -> None:
    for label, points in lines.items():
        where = [point.place.changed for point in points]
        axes.plot(
            where,
            [panel.value(point) for point in points],
            color=_COLOURS[points[0].kind],
            linestyle="--" if label.endswith(" 1 stream") else "-",
            label=label,
        )
        if panel.named:
            named = where[:: -panel.named]
            axes.set_xscale("log", base=2)
            axes.set_xticks(named, [str(each) for each in named])
    axes.set_xlabel(panel.over)
    axes.set_ylabel(panel.upwards)
    axes.set_ylim(bottom=0)
    axes.legend()
