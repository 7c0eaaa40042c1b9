"""The picture of the autoscaling study: what came, how many replicas there were, and what it gave.

Owns what is drawn; ``plot_sheet`` and ``study_svg`` own how.
"""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.evaluation.fleet_report import FIXED, GOODPUT, HOURS, Point
from chairlift.evaluation.plot_sheet import sheet
from chairlift.evaluation.study_svg import Axis, Panel, dot, line, picture, steps, stroke

__all__ = ["draw"]

HOUR_S = 3600.0


def draw(points: Sequence[Point]) -> str:
    """A row of three pictures for each scale."""
    arms = list(dict.fromkeys(each.arm for each in points))
    rows = []
    for scale in dict.fromkeys(each.scale for each in points):
        of_scale = [each for each in points if each.scale == scale]
        rows.append([_load(scale, of_scale[0]), _sizes(of_scale, arms), _trade(of_scale, arms)])
    return sheet(rows, {arm: colour for colour, arm in enumerate(arms)})


def _load(scale: str, point: Point) -> tuple[str, str]:
    course = [(at_s / HOUR_S, rate) for at_s, rate in point.load]
    panel = Panel(
        Axis.over("hours", (at for at, _ in course)),
        Axis.over("requests/s", (rate for _, rate in course)),
    )
    title = f"{scale} at the most: what comes"
    return title, picture(panel, [line(panel, steps(course), 7)], title)


def _sizes(points: Sequence[Point], arms: Sequence[str]) -> tuple[str, str]:
    hours = [at_s / HOUR_S for each in points for at_s, _, _ in each.sizes]
    most = [paid for each in points for _, _, paid in each.sizes]
    panel = Panel(Axis.over("hours", hours), Axis.over("replicas", most))
    lines = [
        line(
            panel,
            steps([(at_s / HOUR_S, paid) for at_s, _, paid in each.sizes]),
            arms.index(each.arm),
        )
        for each in points
    ]
    title = "replicas that are paid for"
    return title, picture(panel, lines, title)


def _trade(points: Sequence[Point], arms: Sequence[str]) -> tuple[str, str]:
    fixed = next(each for each in points if each.arm == FIXED)
    places = [
        (each.replica_hours / fixed.replica_hours, each.on_time / max(1, fixed.on_time))
        for each in points
    ]
    low = min(0.8, *(share for _, share in places))
    panel = Panel(
        Axis("replica-hours, of the fixed maximum's", 0.0, 1.1),
        Axis("goodput, of its", low - 0.02, 1.03),
    )
    aims = [
        stroke(panel, ((HOURS, panel.y.low), (HOURS, panel.y.high)), "target"),
        stroke(panel, ((0.0, GOODPUT), (1.1, GOODPUT)), "target"),
    ]
    dots = [
        dot(panel, place, arms.index(each.arm), f"{each.arm}: {each.told}")
        for each, place in zip(points, places, strict=True)
    ]
    title = "what it gives and costs; dashed: the aims"
    return title, picture(panel, [*aims, *dots], title)
