"""How the router's own cost grows with replicas, tenants and what waits: ``growth``.

``python -m chairlift.evaluation.growth`` times the real router in this process (``growth_rig``),
with everything ten and a hundred times as large. Sizes take turns, in rounds, forwards and
backwards, and medians are what counts. ``total`` is what it takes when each of n does one thing, so
n times what was measured for one, and is held against n log n.

    replicas     requests that find a seat; as many at a time as there are seats
    tenants      known to the router; requests of all of them in turn
    waiting      behind full replicas, of ten tenants; one ends and the next is sent, one comes
    in line      the same, each of a tenant of its own
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from chairlift.cluster.tenants import Tenant
from chairlift.evaluation.drill_report import Report, at_most
from chairlift.evaluation.flags import count
from chairlift.evaluation.growth_rig import TOKENS, Rig
from chairlift.evaluation.plot_sheet import sheet
from chairlift.evaluation.study_svg import Axis, Panel, dot, line, picture

__all__ = ["Course", "Dimension", "exponent", "main", "study"]

REPLICAS = 8
"""Where it is not they that grow."""
TENANTS = 10
REST_S = 1.0
MOST_TRACED = 10_000
"""Python's account of memory takes long."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """What grows, and to which sizes; ``requests``: that are measured at each, in a round."""

    name: str
    sizes: tuple[int, ...]
    requests: int

    @property
    def waits(self) -> bool:
        """Whether it is what waits that grows."""
        return self.name in {"waiting", "in line"}


DIMENSIONS = (
    Dimension("replicas", (1, 10, 100), 800),
    Dimension("tenants", (10, 100, 1_000, 10_000), 640),
    Dimension("waiting", (100, 1_000, 10_000, 100_000), 200),
    Dimension("in line", (10, 100, 1_000), 200),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Processor time of one measurement, in microseconds.

    Attributes:
        request_us: for one request; ``token_us``: for one token, of those that were served whole.
        rest_us: of a second in which nothing happens.
    """

    request_us: float
    token_us: float | None
    rest_us: float


@dataclass(frozen=True, slots=True)
class Course:
    """One dimension: all samples by size, and bytes that Python holds at the smaller sizes."""

    dimension: Dimension
    samples: tuple[tuple[Sample, ...], ...]
    memory: tuple[tuple[int, int], ...]

    def of(self, value: Callable[[Sample], float | None]) -> list[tuple[int, float]]:
        """Sizes, and medians of a value that is there for all."""
        found = []
        for size, samples in zip(self.dimension.sizes, self.samples, strict=True):
            values = [each for each in map(value, samples) if each is not None]
            if values:
                found.append((size, median(values)))
        return found

    def spread(self, value: Callable[[Sample], float | None]) -> float:
        """Largest distance between samples of a size, as a share of their median."""
        found = [[each for each in map(value, of) if each is not None] for of in self.samples]
        return max(((max(of) - min(of)) / median(of) for of in found if of), default=0.0)


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Of the power of n that fits best."""
    logs = [(math.log(size), math.log(max(value, 1e-9))) for size, value in points]
    x, y = fmean(a for a, _ in logs), fmean(b for _, b in logs)
    return sum((a - x) * (b - y) for a, b in logs) / sum((a - x) * (a - x) for a, _ in logs)


def over_n_log_n(points: Sequence[tuple[int, float]]) -> float:
    """How much faster than n log n the total has grown, from the least size to the greatest."""
    (least, first), (most, last) = points[0], points[-1]
    return (last / first) / (math.log2(1 + most) / math.log2(1 + least))


async def measure(dimension: Dimension, size: int, rest_s: float) -> Sample:
    """One sample; ``rest_s``: seconds in which nothing happens."""
    async with Rig.opened(_replicas(dimension, size)) as rig:
        tenants, requests = _tenants(dimension, size), dimension.requests
        if dimension.waits:
            await rig.crowd(size, tenants)
            seconds, token_us = await rig.turns(requests, tenants), None
        else:
            await rig.serve(max(requests // 4, len(tenants)), tenants)  # all are known by then
            seconds, later = await rig.serve(requests, tenants)
            token_us = 1e6 * later / (requests * TOKENS)
        return Sample(1e6 * seconds / requests, token_us, 1e6 * await rig.rest(rest_s))


async def held(dimension: Dimension, size: int) -> int:
    """Bytes that Python holds for it."""
    tracemalloc.start()
    try:
        async with Rig.opened(_replicas(dimension, size)) as rig:
            tenants = _tenants(dimension, size)
            if dimension.waits:
                await rig.crowd(size, tenants)
            else:
                await rig.serve(max(size, len(tenants)), tenants)
            return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def study(
    dimensions: Sequence[Dimension],
    rounds: int,
    tell: Callable[[str], None],
    rest_s: float = REST_S,
) -> tuple[Report, list[Course]]:
    """All dimensions; ``tell``: of the progress."""
    report, courses = Report("growth", {"rounds": rounds}), list[Course]()
    for dimension in dimensions:
        samples: dict[int, list[Sample]] = {size: [] for size in dimension.sizes}
        for turn in range(rounds):
            for size in dimension.sizes if turn % 2 == 0 else reversed(dimension.sizes):
                samples[size].append(asyncio.run(measure(dimension, size, rest_s)))
                tell(f"{dimension.name} {size}, round {turn + 1}: {samples[size][-1]}")
        memory = [
            (size, asyncio.run(held(dimension, size)))
            for size in dimension.sizes
            if size <= MOST_TRACED
        ]
        courses.append(Course(dimension, tuple(map(tuple, samples.values())), tuple(memory)))
        _conclude(courses[-1], report)
    return report, courses


def table(courses: Sequence[Course]) -> str:
    """As Markdown, a row a size."""
    rows = [
        "| what grows | n | µs a request | µs a token | µs a second at rest | MB |",
        "|---|---|---|---|---|---|",
    ]
    for course in courses:
        memory = {size: f"{taken / 1e6:.2f}" for size, taken in course.memory}
        for size, samples in zip(course.dimension.sizes, course.samples, strict=True):
            tokens = [each.token_us for each in samples if each.token_us is not None]
            token = f"{median(tokens):.1f}" if tokens else "–"
            rows.append(
                f"| {course.dimension.name} | {size} "
                f"| {median(each.request_us for each in samples):.0f} | {token} "
                f"| {median(each.rest_us for each in samples):.0f} "
                f"| {memory.get(size, '–')} |"
            )
    return "\n".join(rows)


def draw(courses: Sequence[Course]) -> str:
    """A picture for each dimension: the total, relative to the least size, beside n log n."""
    row = []
    for course in courses:
        sizes = course.dimension.sizes
        totals = [(size, size * us / sizes[0]) for size, us in course.of(_request)]
        shares = [(float(size), total / totals[0][1]) for size, total in totals]
        bound = [
            (float(size), size * math.log2(1 + size) / (sizes[0] * math.log2(1 + sizes[0])))
            for size in sizes
        ]
        panel = Panel(
            Axis.over(f"n: {course.dimension.name}", map(float, sizes), logarithmic=True),
            Axis.over("times the least", (y for _, y in (*shares, *bound)), logarithmic=True),
        )
        marks = [line(panel, bound, 7), line(panel, shares, 0)]
        marks += [dot(panel, each, 0, f"{each[0]:g}: {each[1]:.3g}") for each in shares]
        title = f"{course.dimension.name}: n^{1 + exponent(course.of(_request)):.2f}"
        row.append((title, picture(panel, marks, title)))
    rows = [row[:2], row[2:]] if row[2:] else [row]
    return sheet(rows, {"processor time of n requests": 0, "n log n": 7})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--most", type=count, help="only sizes up to so many")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--svg", type=Path, help="file for the picture")
    arguments = parser.parse_args(argv)
    dimensions = [_bounded(each, arguments.most) for each in DIMENSIONS]
    report, courses = study(
        [each for each in dimensions if len(each.sizes) > 1],
        arguments.rounds,
        lambda told: print(told, file=sys.stderr),
    )
    print(table(courses))
    print(report.text())
    if arguments.json is not None:
        report.figures["samples"] = [asdict(each) for each in courses]
        report.write(str(arguments.json))
    if arguments.svg is not None:
        arguments.svg.write_text(draw(courses), encoding="utf-8")
    return 0 if report.holds else 1


def _request(sample: Sample) -> float | None:
    return sample.request_us


def _token(sample: Sample) -> float | None:
    return sample.token_us


def _rest(sample: Sample) -> float | None:
    return sample.rest_us


def _replicas(dimension: Dimension, size: int) -> int:
    return size if dimension.name == "replicas" else REPLICAS


def _tenants(dimension: Dimension, size: int) -> list[Tenant]:
    number = size if dimension.name in {"tenants", "in line"} else TENANTS
    return [Tenant(f"tenant-{each}") for each in range(number)]


def _conclude(course: Course, report: Report) -> None:
    name, least, most = course.dimension.name, *(course.dimension.sizes[i] for i in (0, -1))
    for what, value in (("a request", _request), ("a token", _token)):
        points = course.of(value)
        if not points:
            continue
        report.figures[f"{name}: total of {what} each, exponent"] = 1 + exponent(points)
        report.figures[f"{name}: {what}, spread of samples"] = course.spread(value)
        text = f"{name}, {least} to {most}: total of {what} each, growth over n log n's"
        report.claims.append(at_most(text, over_n_log_n(points), 1.0))
    at_rest = course.of(_rest)
    report.figures[f"{name}: a second at rest, exponent"] = exponent(at_rest)
    if len(course.memory) > 1:
        (few, first), (many, last) = course.memory[0], course.memory[-1]
        report.figures[f"{name}: bytes for each more"] = (last - first) / (many - few)
        each = [(size, taken / size) for size, taken in course.memory]
        text = f"{name}, {few} to {many}: memory, growth over n log n's"
        report.claims.append(at_most(text, over_n_log_n(each), 1.0))
    per_one = [(size, us / size) for size, us in at_rest]
    text = f"{name}, {least} to {most}: a second at rest, growth over n log n's"
    report.claims.append(at_most(text, over_n_log_n(per_one), 1.0))


def _bounded(dimension: Dimension, most: int | None) -> Dimension:
    sizes = tuple(size for size in dimension.sizes if most is None or size <= most)
    return Dimension(dimension.name, sizes, dimension.requests)


if __name__ == "__main__":
    sys.exit(main())
