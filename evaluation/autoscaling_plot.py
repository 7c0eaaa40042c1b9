"""Draws a live comparison: what came, and how many replicas each arm had.

Owns how it looks; needs matplotlib, which the extra ``plots`` brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

__all__ = ["draw"]

_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "autoscaling",  # the same figures give the same file
}
_COLOURS = ("#555555", "#e69f00", "#0072b2", "#cc79a7")


def draw(found: Mapping[str, Any], file: Path) -> None:
    """``found``: as ``autoscaling_report.summary`` makes it."""
    arms = found["arms"]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 1.6 + 1.1 * len(arms)), layout="constrained")
        panels = figure.subplots(1 + len(arms), 1, sharex=True, squeeze=False)[:, 0]
        arrivals = next(iter(arms.values()))["arrivals"]
        panels[0].fill_between(range(len(arrivals)), arrivals, step="post", color="#bbbbbb")
        panels[0].set_ylabel("requests/s")
        for axes, (arm, each), colour in zip(panels[1:], arms.items(), _COLOURS, strict=False):
            course = [*each["replicas"], [len(arrivals), each["replicas"][-1][1]]]
            times, counts = zip(*course, strict=True)
            axes.step(times, counts, where="post", color=colour, linewidth=2)
            axes.set_ylabel("replicas")
            axes.set_ylim(0, max(counts) + 0.4)
            told = f"{arm}: {each['on_time_ratio']:.1%} on time"
            axes.set_title(f"{told}, {each['mean_replicas']:.2f} replicas", loc="left", fontsize=10)
        panels[-1].set_xlabel("seconds")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None})
