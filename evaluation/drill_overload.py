"""Twice as many requests come as can be served, for a minute.

Each names a deadline for its first token. Refusing what cannot be in time keeps the rest in time,
and lets the service be itself again as soon as the overload ends.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace

import aiohttp
import psutil

from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_load import Load, LoadSource, load_source, p99, p99_lag
from chairlift.evaluation.drill_report import Claim, Report, at_least, at_most
from chairlift.evaluation.drill_service import Service, engine_section, running_service
from chairlift.evaluation.records import RequestRecord

__all__ = ["OverloadSettings", "drill", "goodput", "recovery_s", "run"]

WINDOW_S = 5.0
MEGABYTE = 1e6
LAG_SHARE = 0.01
"""Of the deadline; a generator that lags more shows itself rather than the service."""


@dataclass(frozen=True, slots=True)
class OverloadSettings:
    """``phases``: of how many times the capacity, for how many seconds; the second overloads."""

    phases: tuple[tuple[float, float], ...] = ((0.7, 30.0), (2.0, 60.0), (0.7, 60.0))
    measure_s: float = 10.0
    deadline_s: float = 3.0
    recovery_s: float = 60.0
    recovered: float = 0.95
    memory_growth: float = 0.05
    prompt: str = "uniform:16,64"
    output: str = "uniform:8,32"
    seats: int = 12
    replicas: int = 3
    step_ms: float | None = 60.0

    @classmethod
    def real(cls) -> OverloadSettings:
        return cls(seats=4, replicas=1, deadline_s=10.0, measure_s=20.0, step_ms=None)

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(self.seats, "128MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
        }

    @property
    def load(self) -> Load:
        return Load(self.prompt, self.output)


@dataclass(slots=True)
class _Refusals:
    """What the service said when it refused; ``waits``: its Retry-After."""

    statuses: Counter[int] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    def trace(self) -> aiohttp.TraceConfig:
        config = aiohttp.TraceConfig()
        config.on_request_end.append(self._note)
        return config

    async def _note(
        self,
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        end: aiohttp.TraceRequestEndParams,
    ) -> None:
        if end.response.status != 200:
            self.statuses[end.response.status] += 1
            if (wait := end.response.headers.get("Retry-After")) is not None:
                self.waits.append(float(wait))


def run(settings: OverloadSettings) -> Report:
    """On a service of its own."""
    with running_service(config=settings.config) as service:
        return in_loop(drill(service, settings))


async def drill(service: Service, settings: OverloadSettings) -> Report:
    """On a service that runs and has nothing to do."""
    report = Report("overload", asdict(settings))
    (router,) = service.router_pids()
    refusals = _Refusals()
    headers = {"X-Request-Timeout": f"{settings.deadline_s:g}"}
    async with drill_client(service.url) as client:
        async with load_source(service.url, replace(settings.load, seed=1)) as calm:
            capacity = await _capacity(calm, settings)
        rates = [(factor * capacity, duration_s) for factor, duration_s in settings.phases]
        async with load_source(
            service.url, settings.load, headers=headers, traces=[refusals.trace()]
        ) as source:
            records, memory = await asyncio.gather(
                source.open(*rates), _sample_memory(router, sum(s for _, s in rates))
            )
        phases = _by_phase(settings, records)
        report.claims = [
            *_claims(settings, phases, memory),
            *await claims_of_ends(client, settings.replicas),
        ]
        report.figures = {
            "capacity, requests/s": capacity,
            "refusals by status": {str(k): v for k, v in refusals.statuses.items()},
            "Retry-After, s": [min(refusals.waits, default=0), max(refusals.waits, default=0)],
            "refusals by reason": await _reasons(client),
            "router memory before, MB": memory[0] / MEGABYTE,
            "router memory after, MB": memory[-1] / MEGABYTE,
            **_figures(settings, phases),
        }
    return report


async def _capacity(source: LoadSource, settings: OverloadSettings) -> float:
    """Requests a second, with all seats taken; the begin and the end of the run are left out."""
    seats = settings.seats * settings.replicas
    records = await source.closed(2 * seats, settings.measure_s)
    start, end = settings.measure_s / 4, settings.measure_s
    return sum(start <= record.ended < end for record in records) / (end - start)


async def _sample_memory(pid: int, duration_s: float) -> list[float]:
    """Resident bytes, once a second."""
    process = psutil.Process(pid)
    samples = [float(process.memory_info().rss)]
    for _ in range(int(duration_s)):
        await asyncio.sleep(1.0)
        samples.append(float(process.memory_info().rss))
    return samples


def _by_phase(
    settings: OverloadSettings, records: Sequence[RequestRecord]
) -> list[list[RequestRecord]]:
    """By when they were due."""
    phases: list[list[RequestRecord]] = []
    start = 0.0
    for _, duration_s in settings.phases:
        end = start + duration_s
        phases.append([record for record in records if start <= record.intended < end])
        start = end
    return phases


async def _reasons(client: DrillClient) -> dict[str, float]:
    page = await client.metrics()
    reasons = page.by_label("vllm:admission_rejections_total", "reason")
    failures = page.by_label("chairlift_requests_failures_total", "reason")
    return reasons | {f"after acceptance: {why}": number for why, number in failures.items()}


def _claims(
    settings: OverloadSettings,
    phases: Sequence[Sequence[RequestRecord]],
    memory: Sequence[float],
) -> list[Claim]:
    before = goodput(phases[0], settings.deadline_s)
    calm_s, overload_s = settings.phases[0][1], settings.phases[1][1]
    middle, end = memory[int(calm_s + overload_s / 2)], memory[int(calm_s + overload_s)]
    recovery = recovery_s(
        phases[-1],
        calm_s + overload_s,
        deadline_s=settings.deadline_s,
        wanted=settings.recovered * before,
    )
    names = ("before", "during", "after")
    return [
        at_most("seconds until goodput is back", recovery, settings.recovery_s),
        *(
            at_most(
                f"p99 time to first token of accepted requests {name} the overload, s",
                p99(_first_token(record) for record in phase if _accepted(record)),
                settings.deadline_s,
            )
            for name, phase in zip(names, phases, strict=True)
        ),
        at_most(
            "growth of the router's memory in the overload's second half",
            (end - middle) / middle,
            settings.memory_growth,
        ),
        at_least("goodput before the overload, share of what was offered", before, 0.95),
        at_most(
            "p99 lag of the load generator, s",
            p99_lag(record for phase in phases for record in phase),
            LAG_SHARE * settings.deadline_s,
        ),
    ]


def _figures(
    settings: OverloadSettings, phases: Sequence[Sequence[RequestRecord]]
) -> dict[str, object]:
    figures: dict[str, object] = {}
    for (factor, duration_s), phase, name in zip(
        settings.phases, phases, ("before", "during", "after"), strict=True
    ):
        good = sum(_is_good(record, settings.deadline_s) for record in phase)
        figures[f"{name}: {factor:g} × the capacity for {duration_s:g} s"] = {
            "offered": len(phase),
            "accepted": sum(map(_accepted, phase)),
            "good": good,
            "good/s": good / duration_s,
            "failed after acceptance": sum(
                record.failure is not None and _accepted(record) for record in phase
            ),
            "p99 lag of the generator, s": p99_lag(phase),
        }
    return figures


def goodput(records: Sequence[RequestRecord], deadline_s: float) -> float:
    """Share of requests that completed, with the first token in time."""
    good = sum(_is_good(record, deadline_s) for record in records)
    return good / len(records) if records else 0.0


def recovery_s(
    records: Sequence[RequestRecord], start: float, *, deadline_s: float, wanted: float
) -> float | None:
    """Seconds after ``start`` until goodput reached ``wanted`` for good; None if it never did.

    By windows of arrivals; it is back at the begin of the first window after the last bad one.
    """
    windows: dict[int, list[RequestRecord]] = {}
    for record in records:
        windows.setdefault(int((record.intended - start) / WINDOW_S), []).append(record)
    bad = [i for i, each in windows.items() if goodput(each, deadline_s) < wanted]
    last_bad = max(bad, default=-1)
    return None if last_bad == max(windows, default=-1) else (last_bad + 1) * WINDOW_S


def _is_good(record: RequestRecord, deadline_s: float) -> bool:
    return record.failure is None and record.time_to_first_token <= deadline_s


def _accepted(record: RequestRecord) -> bool:
    """It got a response of status 200, whatever came in it."""
    return record.failure is None or record.failure.startswith(("error_", "cut_stream"))


def _first_token(record: RequestRecord) -> float:
    """Endless where none came."""
    return record.time_to_first_token if record.chunks else math.inf
