"""A capacity plan as figures: each with its bounds, its unit and the formula that it came by.

Owns the three cases and which figures there are; ``cluster.capacity`` counts. How they look on a
screen is ``deployments.plan``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chairlift.cluster.capacity import Plan, Question, make_plan
from chairlift.cluster.capacity_devices import Cases

__all__ = ["Figure", "Report", "make_report"]

MIB = 1024**2
_KV_MARGIN = 1.25
"""The cache is made for so many times what its seats hold in the mean."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number; ``low`` and ``high`` are the least and the most of the three cases.

    Attributes:
        unit: ``bytes``, ``s``, or a word for people; "" for a plain number.
        formula: how it follows from figures before it and from what was given.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    formula: str


@dataclass(frozen=True, slots=True)
class Report:
    """The plans of all three cases, and what follows from them together.

    Attributes:
        cautions: what a reader has to know beside the figures.
    """

    question: Question
    degree: int
    cases: Cases
    worst: Plan
    expected: Plan
    best: Plan

    @property
    def figures(self) -> list[Figure]:
        return list(_figures(self))

    @property
    def cautions(self) -> list[str]:
        return list(_cautions(self))

    @property
    def max_replicas(self) -> int:
        """For the worst case."""
        return max(plan.replicas for plan in (self.worst, self.expected, self.best))

    @property
    def kv_memory(self) -> int:
        """Bytes for ``engine.kv_memory``: for the seats, with a margin, of what there is."""
        load, model = self.question.load, self.question.model
        tokens = load.shared_tokens + _KV_MARGIN * self.expected.seats * load.held
        wanted = max(tokens, load.longest) * model.kv_bytes(self.degree)
        return max(1, int(min(wanted, self.expected.kv_room) / MIB)) * MIB

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        question = self.question
        return {
            "model": asdict(question.model),
            "device": asdict(question.device),
            "load": asdict(question.load),
            "targets": asdict(question.targets),
            "wishes": asdict(question.wishes),
            "tensor_parallel": self.degree,
            "assumptions": asdict(self.cases),
            "figures": {
                each.name: {
                    "value": each.value,
                    "low": each.low,
                    "high": each.high,
                    "unit": each.unit,
                    "formula": each.formula,
                }
                for each in self.figures
            },
            "cautions": self.cautions,
        }


def make_report(question: Question, degree: int, cases: Cases) -> Report:
    """Count all three cases through. Raises ConfigError as ``make_plan``."""
    return Report(
        question,
        degree,
        cases,
        make_plan(question, degree, cases.worst, long=True),
        make_plan(question, degree, cases.expected),
        make_plan(question, degree, cases.best),
    )


def _figures(report: Report) -> Iterator[Figure]:
    """In the order in which they follow from each other."""
    model, degree = report.question.model, report.degree
    yield _known(
        "weights", model.weight_bytes, "bytes", f"parameters × bytes of a weight ({model.dtype})"
    )
    formula = "2 × layers × KV heads × head size × bytes of a number"
    yield _known("KV cache per token", model.kv_bytes(degree), "bytes", formula)
    formula = "least number of devices with room for one long sequence, and its tokens in time"
    yield _known("tensor-parallel degree", degree, "", formula)
    for name, (field, unit, formula) in _OF_PLANS.items():
        values = [getattr(each, field) for each in (report.worst, report.expected, report.best)]
        if None not in values:
            yield Figure(name, values[1], min(values), max(values), unit, formula)


def _known(name: str, value: float, unit: str, formula: str) -> Figure:
    return Figure(name, value, value, value, unit, formula)


_OF_PLANS: Mapping[str, tuple[str, str, str]] = {
    "room for the KV cache, per replica": (
        "kv_room",
        "bytes",
        "0.9 × (degree × (memory − reserve) − weights)",
    ),
    "sequences that fit, per replica": (
        "kv_seats",
        "",
        "(room ÷ KV per token − shared tokens) ÷ tokens held; held = prompt + ½ × output of those "
        "that run − shared; low: all are as long as the 95th percentile",
    ),
    "seats, per replica": (
        "seats",
        "",
        "most sequences B, of those that fit and of B × (1 + prompt ÷ output) ≤ token budget, "
        "whose full step is within --per-token",
    ),
    "step of one sequence": (
        "alone_s",
        "s",
        "longer + (1 − overlap) × shorter of bytes ÷ (efficiency × bandwidth) and operations ÷ "
        "(efficiency × FLOP/s), + overhead",
    ),
    "step of all seats, with its share of prompts": (
        "full_s",
        "s",
        "the same with B sequences and B × prompt ÷ output tokens of prompts: the time per token",
    ),
    "a long prompt on a full replica": (
        "prompt_s",
        "s",
        "p95 prompt − shared, in chunks of token budget − B, each a step",
    ),
    "output tokens/s of a full replica": ("tokens_per_s", "tokens/s", "B ÷ its step"),
    "replicas at the load": (
        "at_load",
        "",
        "least N with rate × output × step ≤ (1 − headroom) × N × B, and ≤ 5% late by Erlang's C",
    ),
    "late": (
        "late_share",
        "share",
        "Erlang C(N × B seats) × e^(−free seats × patience ÷ variability): requests that wait for "
        "longer than --first-token − prompt",
    ),
    "sequences that run, per replica": ("running", "", "rate ÷ N × output × step (Little's law)"),
    "time per token at the load": ("load_s", "s", "the step with so many sequences"),
    "replicas with spares": ("replicas", "", "N + spares"),
    "routers": (
        "routers",
        "",
        "rate × output × 43 µs ÷ 0.6 of a core, + 1 where there are spares",
    ),
    "cost per hour": ("per_hour", "", "price × degree × replicas with spares"),
    "cost per million output tokens": (
        "per_million",
        "",
        "cost per hour ÷ (3600 × rate × output) × 10⁶",
    ),
}
"""By name: the field of a plan, the unit and the formula."""


def _cautions(report: Report) -> Iterator[str]:
    question = report.question
    if not report.expected.meets:
        yield "the targets are not met even in the expected case: " + _missed(
            report.expected, question
        )
    elif not report.worst.meets:
        yield "the targets are missed in the worst case: " + _missed(report.worst, question)
    if not question.device.is_cpu:
        yield (
            "efficiencies on GPUs are aims, not measurements: measure a replica with chairlift "
            "bench, and give --efficiency"
        )
    if question.model.dtype == "float8":
        yield "Chairlift has no 8-bit weights on GPUs: this is for comparison alone"
    if question.wishes.spares == 0:
        yield "no spare: while one replica is replaced its share of the load has to wait"


def _missed(plan: Plan, question: Question) -> str:
    targets = question.targets
    return (
        f"a full step takes {1e3 * plan.full_s:.1f} ms of {1e3 * targets.per_token_s:g} ms, a long "
        f"prompt {plan.prompt_s:.2f} s of {targets.first_token_s:g} s"
    )
