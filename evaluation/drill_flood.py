"""One tenant sends ten times what the others send, and more than there is.

Light tenants ask for less than their share; two heavy ones for far more. The light ones are
measured alone first, with the same requests at the same times, and then beside the flood.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field

from chairlift.cluster.fairness import gap_bound
from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_load import Load, LoadSource, load_source, p99, p99_lag
from chairlift.evaluation.drill_report import Claim, Report, at_least, at_most, exactly
from chairlift.evaluation.drill_service import Service, engine_section, running_service
from chairlift.evaluation.metrics_page import MetricsPage
from chairlift.evaluation.records import RequestRecord

__all__ = [
    "FloodSettings",
    "Served",
    "drill",
    "hash_of",
    "key_of",
    "run",
    "slowdowns",
    "widest_gap",
]

HEAVY = ("heavy-1", "heavy-2")
SAMPLE_S = 0.25
SCRAPES = 40
"""Pages at most until one of every router has been seen."""


@dataclass(frozen=True, slots=True)
class FloodSettings:
    """``rate``: requests a second of a light tenant; a heavy one sends ``times`` as many."""

    routers: tuple[int, ...] = (1, 3)
    light: tuple[str, ...] = ("light-1", "light-2", "light-3")
    rate: float = 3.0
    times: float = 10.0
    duration_s: float = 25.0
    slower: float = 2.0
    uneven: float = 3.0
    prompt: str = "uniform:16,64"
    output: str = "uniform:4,28"
    longest: tuple[int, int] = (64, 28)
    seats: int = 32
    replicas: int = 3
    step_ms: float | None = 200.0

    @classmethod
    def real(cls) -> FloodSettings:
        return cls(routers=(1,), rate=0.9, duration_s=40.0, seats=16, replicas=1, step_ms=None)

    def config(self, routers: int, *, fair: bool) -> dict[str, object]:
        return {
            "engine": engine_section(self.seats, "256MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
            "router": {"replicas": routers, "fair": fair},
            "tenants": {name: {"keys": [hash_of(key_of(name))]} for name in (*self.light, *HEAVY)},
        }

    def rate_of(self, tenant: str) -> float:
        return self.rate * (self.times if tenant in HEAVY else 1.0)

    def seed_of(self, tenant: str) -> int:
        return (*self.light, *HEAVY).index(tenant)

    @property
    def gap_bound(self) -> float:
        """For all replicas together."""
        longest_prompt, longest_output = self.longest
        return gap_bound(longest_prompt, longest_output * self.seats * self.replicas)


def key_of(tenant: str) -> str:
    """The API key that a drill gives it."""
    return f"key-of-{tenant}"


def hash_of(key: str) -> str:
    """As a configuration holds it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Served:
    """A tenant at one moment, over all routers: service so far, and requests that wait."""

    service: float
    queued: float


@dataclass(slots=True)
class _Part:
    """One load: records by tenant, and samples of what each had been served."""

    records: dict[str, list[RequestRecord]]
    samples: list[dict[str, Served]] = field(default_factory=list)

    def light_p99(self, settings: FloodSettings) -> float | None:
        """Of the time to the first token, over all light tenants."""
        return p99(
            record.time_to_first_token
            for name in settings.light
            for record in self.records[name]
            if record.failure is None
        )


def run(settings: FloodSettings) -> Report:
    """On services of its own: fair with each number of routers, and once in order of arrival."""
    report = Report("flood", asdict(settings))
    alone = None
    for routers in settings.routers:
        with running_service(config=settings.config(routers, fair=True)) as service:
            alone = in_loop(drill(service, settings, routers, report))
    with running_service(config=settings.config(1, fair=False)) as service:
        unfair = in_loop(_flood(service, settings, 1))
    if alone is not None:
        report.figures |= _figures(settings, alone, unfair, "in order of arrival, 1 router")
    return report


async def drill(service: Service, settings: FloodSettings, routers: int, report: Report) -> _Part:
    """Measure on a service that has nothing to do, and add to the report; returns the calm part."""
    async with _sources(service.url, settings, settings.light) as sources:
        records = await asyncio.gather(
            *(each.open((settings.rate, settings.duration_s)) for each in sources.values())
        )
    alone = _Part(dict(zip(settings.light, records, strict=True)))
    flooded = await _flood(service, settings, routers)
    name = f"{routers} router{'s' if routers > 1 else ''}"
    report.claims += _claims(settings, alone, flooded, name)
    report.figures |= _figures(settings, alone, flooded, name)
    return alone


async def _flood(service: Service, settings: FloodSettings, routers: int) -> _Part:
    """All tenants at once; what the heavy ones did not get in time is cancelled."""
    part = _Part({})
    tenants = (*settings.light, *HEAVY)
    async with _sources(service.url, settings, tenants) as sources:
        loads = [
            source.open((settings.rate_of(name), settings.duration_s), patience_s=patience)
            for name, source in sources.items()
            for patience in [0.0 if name in HEAVY else None]
        ]
        async with drill_client(service.url) as client:
            watching = asyncio.create_task(_watch(client, routers, part.samples))
            records = await asyncio.gather(*loads)
            watching.cancel()
    part.records = dict(zip(tenants, records, strict=True))
    return part


@asynccontextmanager
async def _sources(
    url: str, settings: FloodSettings, tenants: Sequence[str]
) -> AsyncIterator[dict[str, LoadSource]]:
    """One client a tenant; a tenant asks for the same whoever else is there."""
    async with AsyncExitStack() as stack:
        sources = {}
        for name in tenants:
            load = Load(settings.prompt, settings.output, seed=settings.seed_of(name))
            headers = {"Authorization": f"Bearer {key_of(name)}"}
            source = load_source(url, load, headers=headers)
            sources[name] = await stack.enter_async_context(source)
        yield sources


async def _watch(client: DrillClient, routers: int, samples: list[dict[str, Served]]) -> None:
    while True:
        pages = await _pages_of_all(client, routers)
        served: dict[str, dict[str, float]] = {"service_total": {}, "queued": {}}
        for page in pages:
            for name, sums in served.items():
                for tenant, value in page.by_label(f"chairlift_tenant_{name}", "tenant").items():
                    sums[tenant] = sums.get(tenant, 0.0) + value
        samples.append(
            {
                tenant: Served(service, served["queued"].get(tenant, 0.0))
                for tenant, service in served["service_total"].items()
            }
        )
        await asyncio.sleep(SAMPLE_S)


async def _pages_of_all(client: DrillClient, routers: int) -> list[MetricsPage]:
    """One page of each router; they share a port, and any of them may answer."""
    pages: dict[str, MetricsPage] = {}
    for _ in range(SCRAPES):
        page = await client.metrics()
        (router,) = page.by_label("chairlift_queue_requests", "router") or {"": 0.0}
        pages[router] = page
        if len(pages) == routers:
            break
    return list(pages.values())


def _claims(settings: FloodSettings, alone: _Part, flooded: _Part, name: str) -> list[Claim]:
    before, beside = alone.light_p99(settings), flooded.light_p99(settings)
    slower = beside / before if before and beside else None
    slow = [
        p99(slowdowns(alone.records[tenant], flooded.records[tenant])) for tenant in settings.light
    ]
    known = [each for each in slow if each is not None]
    uneven = max(known) / statistics.median(known) if known else None
    lost = sum(
        record.failure is not None
        for tenant in settings.light
        for record in flooded.records[tenant]
    )
    gap = widest_gap(flooded.samples, *HEAVY)
    return [
        exactly(f"{name}: light requests that failed beside the flood", lost, 0),
        at_most(
            f"{name}: p99 time to first token of light tenants beside the flood over alone",
            slower,
            settings.slower,
        ),
        at_most(
            f"{name}: worst over median p99 slowdown of the light tenants", uneven, settings.uneven
        ),
        at_least(
            f"{name}: samples in which both heavy tenants waited",
            len(_backlogged(flooded.samples, *HEAVY)),
            settings.duration_s / SAMPLE_S / 4,
        ),
        at_most(
            f"{name}: widest service gap between the two heavy tenants", gap, settings.gap_bound
        ),
    ]


def _figures(settings: FloodSettings, alone: _Part, flooded: _Part, name: str) -> dict[str, object]:
    last = flooded.samples[-1] if flooded.samples else {}
    return {
        f"{name}: light p99 time to first token alone, s": alone.light_p99(settings),
        f"{name}: light p99 time to first token beside the flood, s": flooded.light_p99(settings),
        f"{name}: p99 slowdown": {
            tenant: p99(slowdowns(alone.records[tenant], flooded.records[tenant]))
            for tenant in settings.light
        },
        f"{name}: service": {tenant: each.service for tenant, each in last.items()},
        f"{name}: widest service gap of the heavy tenants": widest_gap(flooded.samples, *HEAVY),
        f"{name}: p99 lag of the generator, s": p99_lag(
            record for tenant in settings.light for record in flooded.records[tenant]
        ),
        f"{name}: offered": {tenant: len(each) for tenant, each in flooded.records.items()},
        f"{name}: completed": {
            tenant: sum(record.failure is None for record in each)
            for tenant, each in flooded.records.items()
        },
    }


def slowdowns(alone: Iterable[RequestRecord], beside: Iterable[RequestRecord]) -> list[float]:
    """Latency of each request over that of the same request without company.

    Both in order of intended time; requests that failed in either have none.
    """
    return [
        (after.ended - after.intended) / (before.ended - before.intended)
        for before, after in zip(alone, beside, strict=True)
        if before.failure is None and after.failure is None
    ]


def widest_gap(samples: Sequence[Mapping[str, Served]], one: str, other: str) -> float | None:
    """How far the service of two tenants moved apart in any interval in which both waited.

    None when they never did. Both have weight 1.
    """
    apart = [
        sample[one].service - sample[other].service for sample in _backlogged(samples, one, other)
    ]
    return max(apart) - min(apart) if apart else None


def _backlogged(
    samples: Sequence[Mapping[str, Served]], one: str, other: str
) -> list[Mapping[str, Served]]:
    return [
        sample
        for sample in samples
        if all(tenant in sample and sample[tenant].queued > 0 for tenant in (one, other))
    ]
