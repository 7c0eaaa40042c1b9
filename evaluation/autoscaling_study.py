"""Does following the load keep what it promises, at which price: ``autoscaling_study``.

``python -m chairlift.evaluation.autoscaling_study --traces DIR`` plays a recorded course of load
against simulated clusters of 3, 20 and 200 replicas at the most (``fleet_world``), which are of
fixed size, or sized by Serve's own rule, or by ours. Without ``--traces``, the course is drawn from
numbers that ship. A simulated second costs the same whoever decides, so all arms meet the same
requests at the same times.

    goodput: requests a second whose first token, and the pace of those after it, were in time;
    refused and late ones count as what they are, requests that were not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chairlift.cluster.autoscaling import ScalingPolicy
from chairlift.cluster.autoscaling_config import AutoscalingConfig
from chairlift.evaluation.drill_report import Report
from chairlift.evaluation.fleet_load import Scaled, fitted_arrivals, fleet_load, rates_of
from chairlift.evaluation.fleet_plot import draw
from chairlift.evaluation.fleet_report import (
    DEFAULT,
    FIXED,
    OURS,
    Point,
    findings,
    point_of,
    table,
)
from chairlift.evaluation.fleet_sizers import Fixed, Ours, ServeRule, ServesDefault
from chairlift.evaluation.fleet_world import FleetSettings, Sizer, play_fleet
from chairlift.evaluation.guard_replica import Machine
from chairlift.evaluation.traces import Arrival, read_trace

__all__ = ["SCALES", "Scale", "main", "play_scale", "study"]

TRACE = "azure_code_tuning.csv"

MACHINE = Machine(
    seats=16,
    token_budget=1024,
    blocks=16_384,
    base_s=0.020,
    per_token_s=0.0004,
    per_position_s=1e-7,
)
"""Serves about one request of the trace in a second; its longest prompts take 3.2 s alone."""

FIRST_TOKEN_S, PER_TOKEN_S = 5.0, 0.5

MANY = 100
"""So many replicas take minutes to simulate, and are spared the arms that are only told beside."""

TARGET_LOAD, LOW_LOAD = 0.5, 0.3
"""Of our policy."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A size of cluster, and its load.

    Attributes:
        least, most: replicas.
        start_s: from a replica's order until it serves.
        hold_s: of our policy.
        load: how the course becomes a load.
        part_s: of the course, before it is stretched; the rest is left out.
    """

    name: str
    least: int
    most: int
    start_s: float
    hold_s: float
    load: Scaled
    part_s: float = math.inf


SCALES = (
    Scale("3 replicas", 1, 3, 5.0, 125.0, Scaled(stretch=10.0, copies=1.0, spread_s=0.0)),
    Scale("20 replicas", 4, 20, 60.0, 420.0, Scaled(stretch=24.0, copies=15.0, spread_s=60.0)),
    Scale(
        "200 replicas",
        40,
        200,
        90.0,
        600.0,
        Scaled(stretch=24.0, copies=150.0, spread_s=60.0),
        part_s=330.0,
    ),
)


def policy_of(scale: Scale) -> ScalingPolicy:
    """As one would be configured where replicas take so long to start, with room for it to rise.

    The rest is as it ships.
    """
    usual = AutoscalingConfig()
    return ScalingPolicy(
        min_replicas=scale.least,
        max_replicas=scale.most,
        first_token_target_s=FIRST_TOKEN_S,
        target_load=TARGET_LOAD,
        low_load=LOW_LOAD,
        queue_share=usual.queue_share,
        objective=usual.objective,
        lead_s=scale.start_s,
        up_cool_down_s=usual.up_cool_down_s,
        down_cool_down_s=usual.down_cool_down_s,
        hold_s=scale.hold_s,
        down_share=usual.down_share,
    )


def play_scale(
    scale: Scale, arrivals: Sequence[Arrival], tell: Callable[[str], None], seed: int = 0
) -> list[Point]:
    """All arms; last, where it is not many replicas, a fixed size that costs what ours does."""
    rule = ServeRule(scale.least, scale.most)
    half = ServeRule(scale.least, scale.most, target_ongoing_requests=MACHINE.seats / 2)
    given = fleet_load([each for each in arrivals if each.at_s < scale.part_s], scale.load)
    points: list[Point] = []

    def play(arm: str, start: int, sizer: Sizer) -> Point:
        settings = FleetSettings(
            given,
            MACHINE,
            start,
            scale.start_s,
            first_token_s=FIRST_TOKEN_S,
            per_token_s=PER_TOKEN_S,
            seed=seed,
        )
        points.append(point_of(scale.name, arm, play_fleet(settings, sizer, scale.most)))
        tell(f"{scale.name}, {arm}: {points[-1].told}")
        return points[-1]

    play(FIXED, scale.most, Fixed(scale.most))
    play(DEFAULT, scale.least, ServesDefault(rule))
    if scale.most < MANY:
        play("Serve's, half of the seats", scale.least, ServesDefault(half))
    ours = play(OURS, scale.least, Ours(policy_of(scale)))
    if scale.most < MANY:
        same = max(1, round(ours.mean_replicas))
        play("fixed, at that cost", same, Fixed(same))
    return points


def study(
    scales: Sequence[Scale], arrivals: Sequence[Arrival], tell: Callable[[str], None]
) -> tuple[Report, list[Point]]:
    """All scales."""
    points = [point for scale in scales for point in play_scale(scale, arrivals, tell)]
    return findings(points, {"requests of the course": len(arrivals)}), points


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.autoscaling_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, help=f"folder with {TRACE}")
    parser.add_argument("--most", type=int, action="append", help="only the scale of so many")
    parser.add_argument("--minutes", type=float, help="only the first ones of the course")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--svg", type=Path, help="file for the picture")
    parser.add_argument("--rates", type=Path, help="only print the numbers that ship, of a trace")
    arguments = parser.parse_args(argv)
    try:
        if arguments.rates is not None:
            print(json.dumps(rates_of(read_trace(arguments.rates))))
            return 0
        arrivals = _course(arguments.traces, arguments.minutes)
    except ValueError as error:
        print(f"autoscaling_study: {error}", file=sys.stderr)
        return 1
    scales = [each for each in SCALES if not arguments.most or each.most in arguments.most]
    report, points = study(scales, arrivals, lambda line: print(line, file=sys.stderr))
    print(table(points))
    for claim in report.claims:
        verdict = "holds" if claim.holds else "DOES NOT HOLD"
        print(f"{claim.text}: {claim.measured:.4g}, {claim.relation} {claim.bound:.4g}: {verdict}")
    if arguments.json is not None:
        report.write(str(arguments.json))
    if arguments.svg is not None:
        arguments.svg.write_text(draw(points), encoding="utf-8")
    return 0 if report.holds else 1


def _course(folder: Path | None, minutes: float | None) -> list[Arrival]:
    arrivals: Iterable[Arrival]
    arrivals = fitted_arrivals() if folder is None else read_trace(folder / TRACE)
    return [each for each in arrivals if minutes is None or each.at_s < 60 * minutes]


if __name__ == "__main__":
    sys.exit(main())
