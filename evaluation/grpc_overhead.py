"""gRPC against HTTP: ``python -m chairlift.evaluation.grpc_overhead``.

One service, one router, the same load (32 streams at once) by either way in, in the order HTTP,
gRPC, gRPC, HTTP, so that a machine that grows slower in between is unfair to neither. Told are the
router process's processor time per output token, and the time to the first token. The engine
computes nothing but takes its time for a step, unless ``--real`` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import psutil

from chairlift.evaluation.completions import Target
from chairlift.evaluation.drill_client import in_loop, load_session
from chairlift.evaluation.drill_service import Service, running_service
from chairlift.evaluation.flags import count, positive
from chairlift.evaluation.grpc_load import GrpcTarget, learn, run_grpc_load
from chairlift.evaluation.load_run import LoadRun, run_load
from chairlift.evaluation.loads import Load, closed_load, warm_up_load
from chairlift.evaluation.openai_stream import first_model

__all__ = ["Cost", "compare", "main"]

Way = Literal["http", "grpc"]

_ROUND: tuple[Way, ...] = ("http", "grpc", "grpc", "http")
_LOAD = "c"
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run.

    Attributes:
        cpu_us: of the router's process, per output token.
        first_token_ms: the median request's.
        tokens_per_s: of all streams together.
    """

    way: Way
    cpu_us: float
    first_token_ms: float
    tokens_per_s: float


def compare(costs: Sequence[Cost]) -> dict[str, object]:
    """Medians of both ways, and of the ratios gRPC to HTTP within each pair of neighbours."""
    fields: dict[str, object] = {"pairs": len(costs) // 2}
    for name in ("cpu_us", "first_token_ms", "tokens_per_s"):
        ratios = []
        for one, other in zip(costs[::2], costs[1::2], strict=True):
            by = {each.way: getattr(each, name) for each in (one, other)}
            ratios.append(by["grpc"] / by["http"])
        fields[name] = {
            way: round(median(getattr(each, name) for each in costs if each.way == way), 2)
            for way in ("http", "grpc")
        } | {
            "ratio": round(median(ratios), 3),
            "ratio_least": round(min(ratios), 3),
            "ratio_most": round(max(ratios), 3),
        }
    return fields


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(prog="grpc_overhead", description=_first_line())
    parser.add_argument("--rounds", type=count, default=3, help="of four runs each")
    parser.add_argument("--step-ms", type=positive, default=20.0, help="what a step takes")
    parser.add_argument("--real", action="store_true", help="with the real model")
    arguments = parser.parse_args(argv)
    engine = {} if arguments.real else {"simulated_step_ms": arguments.step_ms}
    with running_service(config={"engine": engine}) as service:
        target = learn(service.grpc_address)
        for way in ("http", "grpc"):
            _measure(service, target, way, warm_up_load(f"grpc {way}"))
        costs = [
            # Of a pair the same load; no prompt comes twice by the same way.
            _measure(service, target, way, closed_load(_LOAD, f"{number} {place // 2}"))
            for number in range(arguments.rounds)
            for place, way in enumerate(_ROUND)
        ]
    print(json.dumps(compare(costs), indent=2))
    return 0


def _measure(service: Service, target: GrpcTarget, way: Way, load: Load) -> Cost:
    (pid,) = service.router_pids()
    router = psutil.Process(pid)
    before = router.cpu_times()
    run = in_loop(_play(service, target, way, load))
    after = router.cpu_times()
    if failures := [record.detail for record in run.records if record.failure is not None]:
        raise RuntimeError(f"requests failed: {failures[0]}")
    tokens = sum(record.tokens for record in run.records)
    cpu_s = after.user - before.user + after.system - before.system
    return Cost(
        way,
        1e6 * cpu_s / tokens,
        1e3 * median(record.time_to_first_token for record in run.records),
        tokens / max(record.ended for record in run.records),
    )


async def _play(service: Service, target: GrpcTarget, way: Way, load: Load) -> LoadRun:
    if way == "grpc":
        return await run_grpc_load(target, load, _TIMEOUT_S)
    base = f"{service.url}/v1"
    async with load_session() as session:
        name = await first_model(session, base)
        return await run_load(session, Target(base, name), load, _TIMEOUT_S)


def _first_line() -> str:
    return (__doc__ or "").split("\n", maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
