"""What a course of a sized cluster came to, and what the study found.

Owns the figures of each arm, their table, and the claims; plays nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.fleet_world import FleetCourse
from chairlift.evaluation.guard_router import Asked
from chairlift.evaluation.percentiles import quantile
from chairlift.router.metrics import Outcome

__all__ = ["DEFAULT", "FIXED", "GOODPUT", "HOURS", "OURS", "Point", "findings", "point_of", "table"]

FIXED, DEFAULT, OURS = "fixed", "Serve's default", "Chairlift"
"""The arms that are compared; others are told beside them."""

GOODPUT, HOURS = 0.95, 0.60
"""Of what a fixed size at the maximum reaches, at least, and of what it costs, at most."""

POINTS = 400
"""Of a course that are kept, for pictures."""

COLUMNS = (
    ("scale", "scale"),
    ("sized by", "arm"),
    ("on time", "share_on_time"),
    ("goodput, requests/s", "goodput"),
    ("replica-hours", "replica_hours"),
    ("mean replicas", "mean_replicas"),
    ("first token p50, s", "first_token_p50_s"),
    ("p99, s", "first_token_p99_s"),
    ("refused", "refused"),
    ("handed over", "moved"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One arm at one scale.

    Attributes:
        asked, on_time, refused: requests.
        share_on_time: of what was asked.
        goodput: requests on time in a second.
        mean_replicas: that were paid for.
        first_token_p50_s, first_token_p99_s: of those that had one.
        moved: handed over by replicas that were drained.
        sizes: seconds, and replicas that served and that were paid for.
        load: seconds, and requests a second that came since the one before.
        reasons: why requests were refused.
    """

    scale: str
    arm: str
    asked: int
    on_time: int
    refused: int
    share_on_time: float
    goodput: float
    replica_hours: float
    mean_replicas: float
    first_token_p50_s: float
    first_token_p99_s: float
    moved: int
    sizes: tuple[tuple[float, int, int], ...] = ()
    load: tuple[tuple[float, float], ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """In one line."""
        return (
            f"{self.share_on_time:.2%} of {self.asked} on time, {self.replica_hours:.1f} "
            f"replica-hours, first token p99 {self.first_token_p99_s:.2f} s, {self.refused} refused"
        )


def point_of(scale: str, arm: str, course: FleetCourse) -> Point:
    """What it came to."""
    settings, asked = course.settings, course.asked
    firsts = [
        each.first_token_at - each.arrived_at for each in asked if each.first_token_at is not None
    ]
    on_time = sum(_is_on_time(each, settings.first_token_s, settings.per_token_s) for each in asked)
    last_s = settings.given[-1].at_s
    refused = [each.label for each in asked if each.outcome is Outcome.REJECTED]
    return Point(
        scale=scale,
        arm=arm,
        asked=len(asked),
        on_time=on_time,
        refused=len(refused),
        share_on_time=on_time / len(asked),
        goodput=on_time / last_s,
        replica_hours=course.replica_s / 3600,
        mean_replicas=course.replica_s / last_s,
        first_token_p50_s=quantile(firsts, 0.50) or 0.0,
        first_token_p99_s=quantile(firsts, 0.99) or 0.0,
        moved=course.moved,
        sizes=tuple(
            (each.at_s, each.ready, each.paid)
            for each in course.sizes[:: max(1, len(course.sizes) // POINTS)]
        ),
        load=_load(asked, last_s),
        reasons=dict(Counter(refused)),
    )


def findings(points: Sequence[Point], settings: Mapping[str, object]) -> Report:
    """All figures, and whether the aims are met."""
    report = Report("autoscaling", dict(settings))
    report.figures["arms"] = [asdict(each) for each in points]
    for scale in dict.fromkeys(each.scale for each in points):
        arms = {each.arm: each for each in points if each.scale == scale}
        fixed, default, ours = arms[FIXED], arms[DEFAULT], arms[OURS]
        of, cost = ours.on_time / max(1, fixed.on_time), ours.replica_hours / fixed.replica_hours
        report.claims += [
            at_least(f"{scale}: goodput, of the fixed maximum's", of, GOODPUT),
            at_most(f"{scale}: replica-hours, of the fixed maximum's", cost, HOURS),
            at_least(f"{scale}: requests on time; Serve's default", ours.on_time, default.on_time),
            at_most(
                f"{scale}: replica-hours; Serve's default",
                ours.replica_hours,
                default.replica_hours,
            ),
        ]
    return report


def table(points: Sequence[Point]) -> str:
    """As Markdown."""
    rows = ["| " + " | ".join(title for title, _ in COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for point in points:
        rows.append("| " + " | ".join(_cell(point, name) for _, name in COLUMNS) + " |")
    return "\n".join(rows)


def _is_on_time(asked: Asked, first_token_s: float, per_token_s: float) -> bool:
    if asked.outcome is not Outcome.FINISHED or not asked.in_time(first_token_s):
        return False
    if asked.tokens < 2 or asked.ended_at is None or asked.first_token_at is None:
        return True
    return (asked.ended_at - asked.first_token_at) / (asked.tokens - 1) <= per_token_s


def _load(asked: Sequence[Asked], last_s: float) -> tuple[tuple[float, float], ...]:
    width_s = max(1e-9, last_s / POINTS)
    counts = Counter(int(each.arrived_at / width_s) for each in asked)
    return tuple((index * width_s, counts[index] / width_s) for index in range(POINTS + 1))


def _cell(point: Point, name: str) -> str:
    value = getattr(point, name)
    if not isinstance(value, float):
        return str(value)
    if name == "share_on_time":
        return f"{value:.1%}"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
