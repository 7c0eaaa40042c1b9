"""``chairlift plan``: how many devices a model and a load need, and what that costs.

Owns how a plan looks in a terminal, and the configuration that follows from it. What is asked is
``plan_inputs``', what is counted ``cluster.capacity``'s.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from chairlift.cluster.capacity import choose_degree, make_plan
from chairlift.cluster.capacity_report import Figure, Report, make_report
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.plan_inputs import Asked, read_question
from chairlift.deployments.plan_inputs import add_arguments as add_inputs

__all__ = ["add_arguments", "configuration", "run"]

PIPE_WIDTH = 140
KIB = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``plan``."""
    parser.description = (
        "Says how many devices a model needs for a load, by the formulas that it prints, with the "
        "least and the most that each figure may come to. Exit code 1: the targets cannot be met."
    )
    add_inputs(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--config", metavar="FILE", help="write a configuration that fits")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 0 if the targets are met in the expected case.

    Raises:
        StartupError: the question makes no sense, or nothing answers it.
    """
    asked = read_question(arguments)
    degree = choose_degree(asked.question, asked.cases.expected, asked.degrees)
    report = make_report(asked.question, degree, asked.cases)
    if arguments.json:
        print(json.dumps(report.as_json(), indent=1))
    else:
        wide = Console(highlight=False) if sys.stdout.isatty() else None
        (wide or Console(width=PIPE_WIDTH, color_system=None)).print(_screen(report))
    if arguments.config is not None:
        _write(Path(arguments.config), configuration(asked, report), _head(report))
    return 0 if report.expected.meets else 1


def configuration(asked: Asked, report: Report) -> dict[str, Any]:
    """As ``chairlift serve --config`` takes it: what follows from the plan, and no more."""
    question, plan = asked.question, report.expected
    calm = replace(question, load=replace(question.load, rate=asked.least_rate))
    least = make_plan(calm, report.degree, asked.cases.expected).replicas
    on_cpu, dtype = question.device.is_cpu, question.model.dtype
    engine: dict[str, Any] = {
        "device": "cpu" if on_cpu else "cuda",
        "cpu_math" if on_cpu else "dtype": dtype,
        "max_sequences": plan.seats,
        "token_budget": question.wishes.token_budget,
        "kv_memory": report.kv_memory,
    }
    if asked.kv_type != "auto":
        engine["kv_type"] = asked.kv_type
    telemetry: dict[str, Any] = {
        "first_token_target_s": question.targets.first_token_s,
        "per_token_target_s": question.targets.per_token_s,
    }
    if question.wishes.price is not None:
        telemetry["price_per_replica_hour"] = question.wishes.price * report.degree
    tree: dict[str, Any] = {} if asked.model is None else {"model": {"path": asked.model}}
    return tree | {
        "engine": engine,
        "workers": {
            "tensor_parallel": report.degree,
            "autoscaling": {
                "min_replicas": min(least, plan.replicas),
                "max_replicas": report.max_replicas,
            },
        },
        "router": {"replicas": plan.routers},
        "telemetry": telemetry,
    }


def _write(file: Path, tree: dict[str, Any], head: str) -> None:
    try:
        file.write_text(
            f"# chairlift plan: {head}\n" + yaml.safe_dump(tree, sort_keys=False), encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(f"--config: cannot write {file}: {error.strerror}") from None


def _screen(report: Report) -> Group:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("figure", "expected", "low to high", "formula"):
        table.add_column(name, justify="right" if name == "expected" else "left")
    for each in report.figures:
        bounds = (
            ""
            if each.low == each.high
            else f"{_shown(each, each.low)} to {_shown(each, each.high)}"
        )
        table.add_row(each.name, _shown(each, each.value), bounds, Text(each.formula, style="dim"))
    return Group(Text(_head(report), style="bold"), Text(""), table, Text(""), *_notes(report))


def _head(report: Report) -> str:
    question, load = report.question, report.question.load
    return (
        f"{question.model.name} on {report.degree} × {question.device.name} a replica, "
        f"{load.rate:g} requests/s of {load.prompt.mean:g} + {load.output.mean:g} tokens"
    )


def _notes(report: Report) -> list[Text]:
    device, expected = report.question.device, report.cases.expected
    flops = device.flops[report.question.model.dtype]
    lines = [
        f"{device.name}: {device.memory / 1e9:.0f} GB, {device.bandwidth / 1e9:.4g} GB/s, "
        f"{flops / 1e12:.4g} TFLOP/s ({device.source})",
        f"expected of that: {expected.memory:.0%} of the bandwidth for weights, "
        f"{expected.attention:.0%} for keys and values, {expected.compute:.0%} of the operations; "
        f"{1e3 * expected.overhead_s:g} ms a step besides; --efficiency sets the shares",
    ]
    return [*map(Text, lines), *(Text(f"! {line}", style="yellow") for line in report.cautions)]


def _shown(figure: Figure, value: float) -> str:
    match figure.unit:
        case "bytes":
            return _size(value)
        case "s":
            return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
        case "share":
            return f"{value:.1%}"
    whole = value == int(value) or abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def _size(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < KIB:
            return f"{value:.3g} {unit}"
        value /= KIB
    return f"{value:.1f} GiB"
