"""Faults that can be planted from outside, and how soon the Guard answers them, on real processes.

One service after the other, each with what its faults need; between two faults the Guard is left
alone until it has come down. What else the Guard can see is planted in simulated time
(``guard_faults``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.evaluation.drill_client import in_loop
from chairlift.evaluation.drill_flood import hash_of, key_of
from chairlift.evaluation.drill_guard import NORMAL, Part, guard_file, until_normal, watched
from chairlift.evaluation.drill_load import Load, load_source
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.drill_service import Service, engine_section, running_service

__all__ = ["GuardFaultSettings", "run"]

USER, FLOOD = "user", "flood"
STOPPED_S, RUNNING_S = 0.3, 0.1
"""Of a worker that is slow: it stands still for three quarters of the time."""


@dataclass(frozen=True, slots=True)
class GuardFaultSettings:
    """``calm_s``: of load before a fault; ``lasts_s``: of the fault, at the most."""

    calm_s: float = 20.0
    lasts_s: float = 40.0
    slack_s: float = 3.0
    """For what is measured to reach the Hub; the times that the policy states begin there."""
    back_s: float = 90.0
    leave_for_s: float = 4.0
    target_s: float = 3.0
    seats: int = 12
    replicas: int = 2
    step_ms: float = 60.0
    prompt: str = "uniform:16,64"
    output: str = "uniform:8,32"
    rate: float = 10.0
    """Requests a second before the fault."""

    def config(self, policy: Path, kv_memory: str, *, fair: bool) -> dict[str, object]:
        return {
            "engine": engine_section(self.seats, kv_memory, self.step_ms),
            "workers": {"replicas": self.replicas},
            "router": {"fair": fair},
            "telemetry": {"first_token_target_s": self.target_s},
            "guard": {"file": str(policy)},
            "tenants": {name: {"keys": [hash_of(key_of(name))]} for name in (USER, FLOOD)},
        }


Plant = Callable[[Service, GuardFaultSettings], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Fault:
    """``plant`` breaks something for as long as it is entered."""

    what: str
    signal: Signal
    plant: Plant


def _sending(tenant: str, times: float, output: str | None = None) -> Plant:
    """More requests: so many times those that come anyway."""

    @asynccontextmanager
    async def plant(service: Service, settings: GuardFaultSettings) -> AsyncIterator[None]:
        load = Load(settings.prompt, output or settings.output, seed=1)
        headers = {"Authorization": f"Bearer {key_of(tenant)}"}
        async with load_source(service.url, load, headers=headers) as source:
            sending = asyncio.create_task(
                source.open((times * settings.rate, settings.lasts_s), patience_s=0.0)
            )
            try:
                yield
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending

    return plant


@asynccontextmanager
async def _slow_worker(service: Service, _settings: GuardFaultSettings) -> AsyncIterator[None]:
    """One worker is stopped again and again."""
    pid = service.worker_pids()[0]

    async def stop_and_go() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(RUNNING_S)

    slowing = asyncio.create_task(stop_and_go())
    try:
        yield
    finally:
        slowing.cancel()
        os.kill(pid, signal.SIGCONT)


_AMPLE, _SMALL = "128MiB", "64MiB"

_SERVICES: tuple[tuple[str, bool, tuple[_Fault, ...]], ...] = (
    (
        _AMPLE,
        True,
        (
            _Fault("three times the load", Signal.OFFERED_LOAD, _sending(USER, 3.0)),
            _Fault("a worker that often stands still", Signal.SLOW_STEPS, _slow_worker),
        ),
    ),
    (
        _AMPLE,
        False,
        (_Fault("a flood, in order of arrival", Signal.UNFAIRNESS, _sending(FLOOD, 6.0)),),
    ),
    (
        _SMALL,
        True,
        (
            _Fault("long outputs", Signal.KV_USE, _sending(USER, 0.4, "uniform:150,250")),
            _Fault("longer outputs", Signal.RECOMPUTATION, _sending(USER, 0.8, "uniform:200,300")),
        ),
    ),
)


def run(settings: GuardFaultSettings) -> Report:
    """On services of its own."""
    report = Report("guard-faults", asdict(settings))
    with guard_file(settings.leave_for_s) as policy:
        for kv_memory, fair, faults in _SERVICES:
            config = settings.config(policy, kv_memory, fair=fair)
            with running_service(config=config) as service:
                for fault in faults:
                    in_loop(_try(service, settings, fault, report))
    return report


async def _try(
    service: Service, settings: GuardFaultSettings, fault: _Fault, report: Report
) -> None:
    """Plant it under load, watch, take it away, and wait until the Guard has come down."""
    part, load = Part(time.time()), Load(settings.prompt, settings.output)
    headers = {"Authorization": f"Bearer {key_of(USER)}"}
    async with (
        load_source(service.url, load, headers=headers) as source,
        watched(service.url, part),
    ):
        phase = (settings.rate, settings.calm_s + settings.lasts_s)
        sending = asyncio.create_task(source.open(phase, patience_s=0.0))
        await asyncio.sleep(settings.calm_s)
        planted_s = time.time() - part.began
        async with fault.plant(service, settings):
            await sending
        end_s = time.time() - part.began
        await until_normal(part, end_s + settings.back_s)
    _tell(settings, fault, part, planted_s, report)


def _tell(
    settings: GuardFaultSettings, fault: _Fault, part: Part, planted_s: float, report: Report
) -> None:
    """Claims of one fault, and what was seen of it."""
    terms = load_policy(None).signals[fault.signal]
    later = [each for each in part.seen if each.at_s >= planted_s]
    seen = next((each for each in later if fault.signal in each.active), None)
    rung = terms.rung or Rung.NORMAL
    there = next((each for each in later if each.rung >= rung), None)
    name = f"{fault.what} ({fault.signal})"
    report.claims += [
        at_most(
            f"{name}: seconds until the ladder is at its rung, or above",
            None if there is None else there.at_s - planted_s,
            terms.within_s + settings.slack_s,
        ),
        at_least(f"{name}: lowest rung again", float(part.seen[-1].rung == NORMAL), 1),
    ]
    first = next((each for each in later if each.active), None)
    report.figures[name] = {
        "rung": rung.name.lower(),
        "owner": terms.owner,
        "seen after, s": None if seen is None else seen.at_s - planted_s,
        "first active": [] if first is None else list(first.active),
        "moves": [
            f"{move['at'] - part.began - planted_s:.1f} {move['kind']} {move['after']} "
            f"({move['signal'] or 'calm'}, {move['owner'] or 'nobody'})"
            for move in part.moves
        ],
    }
