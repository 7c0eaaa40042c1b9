"""What telemetry costs: ``python -m chairlift.evaluation.telemetry_overhead``.

Two services with the same model stand beside each other, one that records its requests for the Hub
and one that does not. The same load (32 streams at once) goes to one of them at a time, in the
order off, on, on, off, so that a machine that grows slower in between is unfair to neither.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median

from chairlift.evaluation.completions import Target
from chairlift.evaluation.drill_client import in_loop, load_session
from chairlift.evaluation.drill_service import running_service
from chairlift.evaluation.flags import count
from chairlift.evaluation.load_run import run_load
from chairlift.evaluation.loads import Load, closed_load, warm_up_load
from chairlift.evaluation.openai_stream import first_model
from chairlift.evaluation.peers_report import figures_of

__all__ = ["costs", "main"]

_ROUND = (False, True, True, False)
_LOAD = "c"
_GOAL = 0.02
_TIMEOUT_S = 120.0


def costs(speeds: Sequence[tuple[bool, float]]) -> list[float]:
    """Of each pair of neighbours, what was lost with telemetry, as a share of the speed without.

    Args:
        speeds: whether telemetry was on, and output tokens per second, run by run.
    """
    found = []
    for one, other in zip(speeds[::2], speeds[1::2], strict=True):
        by = dict((one, other))
        found.append(1 - by[True] / by[False])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print as JSON; 0 when the median cost is below 2%, else 1."""
    parser = argparse.ArgumentParser(prog="telemetry_overhead", description=_first_line())
    parser.add_argument("--rounds", type=count, default=6, help="of four runs each")
    arguments = parser.parse_args(argv)
    with ExitStack() as services:
        bases = {on: _start(services, on=on) for on in (False, True)}
        for base in bases.values():
            _tokens_per_s(base, warm_up_load("telemetry"))
        speeds = _measure(bases, arguments.rounds)
    found = costs(speeds)
    fields = {
        "pairs": len(found),
        "cost_median": median(found),
        "cost_least": min(found),
        "cost_most": max(found),
        "tokens_per_s_off": median(speed for on, speed in speeds if not on),
        "tokens_per_s_on": median(speed for on, speed in speeds if on),
        "goal": _GOAL,
    }
    print(json.dumps(fields, indent=2))
    return 0 if fields["cost_median"] < _GOAL else 1


def _start(services: ExitStack, *, on: bool) -> str:
    config = {"telemetry": {"enabled": on}}
    return f"{services.enter_context(running_service(config=config)).url}/v1"


def _measure(bases: Mapping[bool, str], rounds: int) -> list[tuple[bool, float]]:
    speeds = []
    for number in range(rounds):
        for place, on in enumerate(_ROUND):
            load = closed_load(_LOAD, f"{number} {place // 2}")  # of a pair the same
            speeds.append((on, _tokens_per_s(bases[on], load)))
    return speeds


def _tokens_per_s(base: str, load: Load) -> float:
    async def play() -> float:
        async with load_session() as session:
            target = Target(base, await first_model(session, base))
            run = figures_of(await run_load(session, target, load, _TIMEOUT_S))
            if run.failures:
                raise RuntimeError(f"requests failed: {run.failures}")
            return run.output_tokens_per_s

    return in_loop(play())


def _first_line() -> str:
    return (__doc__ or "").split("\n", maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
