"""What is compared live: one load, and services that differ in how many replicas they have.

Owns the load, which is the course of a trace played faster and thinned out, and the arms:

    fixed     as many replicas as there may be, all the time
    serve     Ray Serve's own rule as it ships, told of requests what it would see if they were its;
              its delays are as much shorter as the trace is faster
    tuned     the same rule with as many requests for a replica as fill it to the target, and as
              quick as ``work``
    work      Chairlift's policy

In all of them the Guard is off, for it would turn away the load that calls for replicas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chairlift.evaluation.drill_service import engine_section
from chairlift.evaluation.fleet_load import fitted_arrivals
from chairlift.evaluation.traces import Arrival, read_trace, scale_trace

__all__ = ["ARMS", "LiveSettings", "config_of", "course_of", "live_load"]


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Of one comparison.

    Attributes:
        replicas: at the most; one at the least.
        seats, step_ms: of a replica, whose steps are simulated.
        first_token_s, per_token_s: targets.
        faster: than the trace, is its course played.
        share: of its requests that are sent.
        prompt_scale: of the trace's prompts, so that sending them does not take the machine.
        from_s, for_s: the part of the trace that is played, in its own time.
        hold_s, down_cool_down_s, target_load, low_load: of ``work``; ``tuned`` has them too, as
            far as it knows such a thing.
        start_s: what a replica takes to start here.
        seed: of arrivals and lengths.
    """

    replicas: int = 3
    seats: int = 8
    step_ms: float = 40.0
    first_token_s: float = 2.0
    per_token_s: float = 0.1
    faster: float = 10.0
    share: float = 0.06
    prompt_scale: float = 0.25
    from_s: float = 180.0
    for_s: float = 1100.0
    hold_s: float = 5.0
    down_cool_down_s: float = 1.0
    target_load: float = 0.8
    low_load: float = 0.6
    start_s: float = 4.0
    seed: int = 0


def course_of(trace: Path | None, seed: int) -> list[Arrival]:
    """The trace's requests; without one, such as the numbers that ship make them.

    Raises:
        ValueError: the file cannot be read.
    """
    return fitted_arrivals(seed) if trace is None else read_trace(trace)


def live_load(arrivals: Sequence[Arrival], settings: LiveSettings) -> list[Arrival]:
    """What is sent, in seconds from its start."""
    rng, begin_s = random.Random(f"share {settings.seed}"), settings.from_s
    sent = [
        replace(each, at_s=each.at_s - begin_s)
        for each in arrivals
        if rng.random() < settings.share and 0 <= each.at_s - begin_s < settings.for_s
    ]
    scaled = scale_trace(sent, lengths=1.0, time=1 / settings.faster)
    prompts = scale_trace(scaled, lengths=settings.prompt_scale, time=1.0)
    return [
        replace(each, lengths=replace(each.lengths, prompt=shorter.lengths.prompt))
        for each, shorter in zip(scaled, prompts, strict=True)
    ]


def config_of(arm: str, settings: LiveSettings) -> dict[str, object]:
    """The configuration of the service."""
    return {
        "engine": engine_section(settings.seats, "256MiB", settings.step_ms),
        "workers": ARMS[arm](settings),
        "telemetry": {
            "first_token_target_s": settings.first_token_s,
            "per_token_target_s": settings.per_token_s,
        },
        "guard": {"mode": "off"},
    }


def _fixed(settings: LiveSettings) -> dict[str, object]:
    return {"replicas": settings.replicas}


def _tuned(settings: LiveSettings) -> dict[str, object]:
    return _scaled(
        settings,
        policy="ongoing-requests",
        ongoing_requests=settings.target_load * settings.seats,
        up_delay_s=0.0,
        down_delay_s=settings.hold_s,
        look_back_s=2.0,
    )


def _serve(settings: LiveSettings) -> dict[str, object]:
    return _scaled(
        settings,
        policy="ongoing-requests",
        up_delay_s=30.0 / settings.faster,
        down_delay_s=600.0 / settings.faster,
        look_back_s=30.0 / settings.faster,
    )


def _work(settings: LiveSettings) -> dict[str, object]:
    return _scaled(
        settings,
        target_load=settings.target_load,
        low_load=settings.low_load,
        hold_s=settings.hold_s,
        up_cool_down_s=0.5,
        down_cool_down_s=settings.down_cool_down_s,
        start_s=settings.start_s,
    )


def _scaled(settings: LiveSettings, **more: object) -> dict[str, object]:
    bounds = {"min_replicas": 1, "max_replicas": settings.replicas}
    return {"autoscaling": bounds | more}


ARMS: Mapping[str, Callable[[LiveSettings], dict[str, object]]] = {
    "fixed": _fixed,
    "serve": _serve,
    "tuned": _tuned,
    "work": _work,
}
