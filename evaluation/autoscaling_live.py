"""A fixed number, Serve's rule, Chairlift's: ``python -m chairlift.evaluation.autoscaling_live``.

Plays the course of a trace against a service of its own for each arm (``autoscaling_arms``), whose
replicas simulate their steps, and counts what was on time and what was paid for. A replica is paid
for from its process's first moment to its last, whether it serves or not. Needs no GPU and about
eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chairlift.evaluation.autoscaling_arms import (
    ARMS,
    LiveSettings,
    config_of,
    course_of,
    live_load,
)
from chairlift.evaluation.autoscaling_plot import draw
from chairlift.evaluation.autoscaling_report import ArmRun, summary, table
from chairlift.evaluation.completions import CompletionClient, Target, request_body
from chairlift.evaluation.drill_client import in_loop, load_session
from chairlift.evaluation.drill_service import Service, running_service
from chairlift.evaluation.flags import positive
from chairlift.evaluation.load import Ask, open_loop, started_clock
from chairlift.evaluation.openai_stream import first_model
from chairlift.evaluation.records import RequestRecord
from chairlift.evaluation.traces import Arrival

__all__ = ["main", "run_arm"]

SAMPLE_S = 0.5
TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 4096
DEFAULT_ARMS = ("fixed", "serve", "work")


def run_arm(arm: str, load: Sequence[Arrival], settings: LiveSettings) -> ArmRun:
    """The whole load against one service."""
    with running_service(config=config_of(arm, settings)) as service:
        records, replicas, decisions = in_loop(_play(service, load, settings))
    return ArmRun(arm, tuple(records), tuple(replicas), tuple(decisions))


async def _play(
    service: Service, load: Sequence[Arrival], settings: LiveSettings
) -> tuple[list[RequestRecord], list[tuple[float, int]], list[dict[str, Any]]]:
    records: list[RequestRecord] = []
    async with load_session() as session:
        base = f"{service.url}/v1"
        target = Target(base=base, model=await first_model(session, base))
        clock = started_clock()
        client = CompletionClient(session, target, clock=clock, timeout_s=TIMEOUT_S)
        watch = asyncio.create_task(asyncio.to_thread(_watch, service, end := asyncio.Event()))
        await open_loop(
            _asks(load, target, settings.seed),
            client.send,
            records.append,
            clock=clock,
            max_in_flight=MAX_IN_FLIGHT,
        )
        end.set()
        async with session.get(f"{service.url}/dashboard/figures") as response:
            scaling = (await response.json())["autoscaling"] or {"steps": []}
        return records, await watch, scaling["steps"]


def _asks(load: Sequence[Arrival], target: Target, seed: int) -> Iterator[Ask]:
    rng = random.Random(f"prompts {seed}")
    for each in load:
        body = request_body(target, each.lengths, rng)
        yield Ask(each.at_s, each.lengths.prompt, each.lengths.output, body)


def _watch(service: Service, end: asyncio.Event) -> list[tuple[float, int]]:
    """Seconds from the start, and processes that hold a model then."""
    found, began = [], time.monotonic()
    while not end.is_set():
        found.append((time.monotonic() - began, len(service.worker_pids())))
        time.sleep(SAMPLE_S)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    defaults = LiveSettings()
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.autoscaling_live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trace", type=Path, help="a trace instead of the numbers that ship")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(DEFAULT_ARMS))
    parser.add_argument("--seed", type=int, default=defaults.seed)
    for flag, told in (
        ("--for-s", "seconds of the trace"),
        ("--share", "of its requests that are sent"),
        ("--first-token-s", "target"),
    ):
        default = getattr(defaults, flag[2:].replace("-", "_"))
        parser.add_argument(flag, type=positive, default=default, help=f"{told} ({default:g})")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--plot", type=Path, help="where to draw replicas over time, as SVG")
    arguments = parser.parse_args(argv)
    settings = LiveSettings(
        seed=arguments.seed,
        for_s=arguments.for_s,
        share=arguments.share,
        first_token_s=arguments.first_token_s,
    )
    try:
        load = live_load(course_of(arguments.trace, settings.seed), settings)
    except ValueError as error:
        print(f"autoscaling_live: {error}", file=sys.stderr)
        return 2
    runs = []
    for arm in arguments.arms:
        print(f"{arm}: {len(load)} requests …", flush=True)
        runs.append(run_arm(arm, load, settings))
    found = summary(runs, settings)
    print(table(found))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"settings": asdict(settings)} | found, indent=1))
    if arguments.plot is not None:
        draw(found, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
