"""A burst that breaks the tail, with the Guard and without it.

Four tenants send for a while what can be served, then twice that, then as before; one of them is
of the lowest class. The same load, at the same times, meets two services that differ in the
Guard's mode alone. What is asked: did the ladder move before the tail broke, was anybody's worst
harm less for it, and did it come down again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml

from chairlift.evaluation.drill_client import drill_client, in_loop, load_session
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_flood import hash_of, key_of
from chairlift.evaluation.drill_load import Load, LoadSource, load_source, p99, p99_lag
from chairlift.evaluation.drill_report import Claim, Report, at_least, at_most
from chairlift.evaluation.drill_service import Service, engine_section, running_service
from chairlift.evaluation.records import RequestRecord

__all__ = [
    "GuardSettings",
    "Part",
    "Seen",
    "crossing_s",
    "drill",
    "guard_file",
    "run",
    "until_normal",
    "watched",
]

POLL_S = 0.2
WINDOW_S = 10.0
NORMAL = 0
SETTLE_S = 10.0
"""After the burst, until when the ladder may still go up for what the burst has left behind."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """``phases``: of how many times the capacity, for how many seconds; the second overloads.

    Attributes:
        target_s: to the first token; what the Guard is to keep.
        leave_for_s: how long a rung's signals must be calm before it is left. The policy that
            ships waits a minute; with that, coming down is nothing to watch.
        back_s: to be on the lowest rung again after the last request was sent, at the most.
    """

    phases: tuple[tuple[float, float], ...] = ((0.7, 20.0), (2.0, 35.0), (0.7, 40.0))
    tenants: tuple[str, ...] = ("one", "two", "three")
    best_effort: str = "nightly"
    target_s: float = 3.0
    leave_for_s: float = 4.0
    back_s: float = 60.0
    measure_s: float = 10.0
    prompt: str = "uniform:16,64"
    output: str = "uniform:8,32"
    seats: int = 12
    replicas: int = 2
    step_ms: float | None = 60.0

    @classmethod
    def real(cls) -> GuardSettings:
        return cls(seats=4, replicas=1, target_s=8.0, measure_s=20.0, step_ms=None)

    @property
    def everybody(self) -> tuple[str, ...]:
        return (*self.tenants, self.best_effort)

    def config(self, mode: str, policy: Path) -> dict[str, object]:
        tenants: dict[str, dict[str, object]] = {
            name: {"keys": [hash_of(key_of(name))]} for name in self.everybody
        }
        tenants[self.best_effort]["priority"] = "batch"
        return {
            "engine": engine_section(self.seats, "128MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
            "telemetry": {"first_token_target_s": self.target_s},
            "guard": {"mode": mode, "file": str(policy)},
            "tenants": tenants,
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """What /guard said, ``at_s`` seconds after the load began."""

    at_s: float
    rung: int
    active: tuple[str, ...]
    moves: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class Part:
    """One service's course.

    Attributes:
        records: by tenant.
        began: of the load, by the wall clock.
    """

    began: float
    records: dict[str, list[RequestRecord]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    @property
    def moves(self) -> list[Mapping[str, Any]]:
        """Of the rung, since the load began, in order."""
        by_version = {
            move["version"]: move
            for seen in self.seen
            for move in seen.moves
            if move["at"] >= self.began and move["before"] != move["after"]
        }
        return [by_version[version] for version in sorted(by_version)]

    def first_active_s(self, after_s: float) -> float | None:
        return next((each.at_s for each in self.seen if each.at_s >= after_s and each.active), None)

    def first_up_s(self, after_s: float) -> float | None:
        ups = (move["at"] - self.began for move in self.moves if move["kind"] == "up")
        return next((at_s for at_s in ups if at_s >= after_s), None)


def run(settings: GuardSettings) -> Report:
    """On two services of their own, first without the Guard."""
    report = Report("guard", asdict(settings))
    parts: dict[str, Part] = {}
    capacity: float | None = None
    with guard_file(settings.leave_for_s) as policy:
        for mode in ("off", "act"):
            with running_service(config=settings.config(mode, policy)) as service:
                if capacity is None:
                    capacity = in_loop(_capacity(service, settings))
                parts[mode], claims = in_loop(drill(service, settings, capacity))
                report.claims += claims
    report.claims = [*_claims(settings, parts["act"], parts["off"]), *report.claims]
    report.figures = {
        "capacity, requests/s": capacity,
        **_figures(settings, parts["act"], parts["off"]),
    }
    return report


async def drill(
    service: Service, settings: GuardSettings, capacity: float
) -> tuple[Part, list[Claim]]:
    """Load a service that runs and has nothing to do; what became of it, and what must hold."""
    share = capacity / len(settings.everybody)
    rates = [(factor * share, duration_s) for factor, duration_s in settings.phases]
    part = Part(time.time())
    async with _sources(service.url, settings) as sources, watched(service.url, part):
        records = await asyncio.gather(*(source.open(*rates) for source in sources.values()))
        part.records = dict(zip(sources, records, strict=True))
        await until_normal(part, sum(lasts for _, lasts in settings.phases) + settings.back_s)
    async with drill_client(service.url) as client:
        return part, await claims_of_ends(client, settings.replicas)


@contextmanager
def guard_file(leave_for_s: float) -> Iterator[Path]:
    """The policy that ships, but for how long a rung's signals must be calm."""
    policy = yaml.safe_load(files("chairlift.cluster").joinpath("guard.yaml").read_text("utf-8"))
    with TemporaryDirectory(prefix="cl") as folder:
        file = Path(folder, "guard.yaml")
        policy["ladder"]["leave_for_s"] = leave_for_s
        file.write_text(yaml.safe_dump(policy))
        yield file


@asynccontextmanager
async def watched(url: str, part: Part) -> AsyncIterator[None]:
    """Look at /guard all the time meanwhile."""
    async with load_session() as session:
        watching = asyncio.create_task(_watch(session, url, part))
        try:
            yield
        finally:
            watching.cancel()


async def until_normal(part: Part, deadline_s: float) -> None:
    """Until the ladder is on its lowest rung, or so many seconds after the load began."""
    while time.time() - part.began < deadline_s:
        if part.seen and part.seen[-1].rung == NORMAL:
            return
        await asyncio.sleep(POLL_S)


async def _watch(session: aiohttp.ClientSession, url: str, part: Part) -> None:
    while True:
        async with session.get(f"{url}/guard") as answer:
            said = await answer.json() if answer.status == 200 else None
        if said is not None and "rung_number" in said:
            signals = said.get("signals", {})
            active = tuple(name for name, each in signals.items() if each["active"])
            moves = tuple(said.get("moves", ()))
            part.seen.append(Seen(time.time() - part.began, said["rung_number"], active, moves))
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def _sources(url: str, settings: GuardSettings) -> AsyncIterator[dict[str, LoadSource]]:
    """One client a tenant."""
    async with AsyncExitStack() as stack:
        sources = {}
        for seed, name in enumerate(settings.everybody):
            load = Load(settings.prompt, settings.output, seed=seed)
            headers = {"Authorization": f"Bearer {key_of(name)}"}
            source = load_source(url, load, headers=headers)
            sources[name] = await stack.enter_async_context(source)
        yield sources


async def _capacity(service: Service, settings: GuardSettings) -> float:
    """Requests a second, with all seats taken; the begin and the end of the run are left out."""
    load = Load(settings.prompt, settings.output, seed=len(settings.everybody))
    headers = {"Authorization": f"Bearer {key_of(settings.tenants[0])}"}
    async with load_source(service.url, load, headers=headers) as source:
        records = await source.closed(2 * settings.seats * settings.replicas, settings.measure_s)
    start, end = settings.measure_s / 4, settings.measure_s
    return sum(start <= record.ended < end for record in records) / (end - start)


def crossing_s(records: Iterable[RequestRecord], target_s: float) -> float | None:
    """When p99 of the time to first token over the last ten seconds first was over the target.

    Of accepted requests, by when their first tokens came; and one that still waits counts from
    when it has waited for so long. None if it never was.
    """
    known = sorted(
        (min(first, record.intended + target_s), first - record.intended)
        for record in records
        if _accepted(record)
        for first in [record.chunks[0] if record.chunks else math.inf]
    )
    start = 0
    for index, (at_s, _) in enumerate(known):
        while known[start][0] < at_s - WINDOW_S:
            start += 1
        late = p99(latency_s for _, latency_s in known[start : index + 1])
        if late is not None and late > target_s:
            return at_s
    return None


def _claims(settings: GuardSettings, act: Part, off: Part) -> list[Claim]:
    calm_s = settings.phases[0][1]
    moved = act.first_up_s(calm_s)
    crossed = crossing_s(_of_tenants(settings, off), settings.target_s)
    lead = None if moved is None or crossed is None else crossed - moved
    harm_on, harm_off = _harm(settings, act), _harm(settings, off)
    back = next((each for each in reversed(act.seen) if each.rung != NORMAL), None)
    steady_s = sum(duration_s for _, duration_s in settings.phases[:-1]) + SETTLE_S
    lag = p99_lag(r for part in (act, off) for each in part.records.values() for r in each)
    return [
        at_least("seconds from the first move up to p99 over its target without it", lead, 0.0),
        at_most(
            "worst tenant's share of requests that were not in time, on over off",
            _over(harm_on.not_in_time, harm_off.not_in_time),
            1.0,
        ),
        at_most(
            "worst tenant's mean time to first token of accepted requests, on over off",
            _over(harm_on.mean_s, harm_off.mean_s),
            1.0,
        ),
        at_most(
            "worst tenant's p99 time to first token of accepted requests, on over off",
            _over(harm_on.p99_s, harm_off.p99_s),
            1.0,
        ),
        at_most(
            "seconds from the end of the load until the lowest rung",
            None if not act.seen else max(0.0, _since_end(settings, back.at_s if back else 0.0)),
            settings.back_s,
        ),
        at_most("moves up under the last phase's load", _ups(act, steady_s), 0),
        at_most("moves up before the burst", _ups(act, 0.0) - _ups(act, calm_s), 0),
        at_most("p99 lag of the load generator, s", lag, 0.05 * settings.target_s),
    ]


@dataclass(frozen=True, slots=True)
class _Harm:
    """To the worst of the tenants that are no best effort: each number is its own worst.

    Times to the first token are of accepted requests; ``None`` without any.
    """

    not_in_time: float
    mean_s: float | None
    p90_s: float | None
    p99_s: float | None


def _harm(settings: GuardSettings, part: Part) -> _Harm:
    each = [part.records[name] for name in settings.tenants]
    waits = [
        sorted(_first_token_s(record) for record in records if _accepted(record))
        for records in each
    ]
    waits = [waited for waited in waits if waited]
    return _Harm(
        not_in_time=max(1 - _in_time(records, settings.target_s) for records in each),
        mean_s=max((fmean(waited) for waited in waits), default=None),
        p90_s=max((waited[int(0.90 * len(waited))] for waited in waits), default=None),
        p99_s=max((waited[int(0.99 * len(waited))] for waited in waits), default=None),
    )


def _figures(settings: GuardSettings, act: Part, off: Part) -> dict[str, object]:
    calm_s = settings.phases[0][1]
    figures: dict[str, object] = {
        "moves, seconds after the burst began": [
            f"{move['at'] - act.began - calm_s:.1f} {move['kind']} {move['after']} "
            f"({move['signal'] or move['by'] or 'calm'})"
            for move in act.moves
        ],
        "seconds from the burst to the first active signal": _minus(
            act.first_active_s(calm_s), calm_s
        ),
        "seconds from the burst to the first move up": _minus(act.first_up_s(calm_s), calm_s),
        "highest rung": max((each.rung for each in act.seen), default=None),
    }
    for name, part in (("on", act), ("off", off)):
        harm = _harm(settings, part)
        crossed = crossing_s(_of_tenants(settings, part), settings.target_s)
        figures |= {
            f"{name}: seconds from the burst to p99 over its target": _minus(crossed, calm_s),
            f"{name}: the worst tenant": asdict(harm),
            f"{name}: in time, by tenant": {
                tenant: _in_time(each, settings.target_s) for tenant, each in part.records.items()
            },
            f"{name}: refused, by tenant": {
                tenant: sum(not _accepted(record) for record in each) / len(each)
                for tenant, each in part.records.items()
            },
        }
    return figures


def _ups(part: Part, after_s: float) -> int:
    return sum(move["kind"] == "up" and move["at"] - part.began >= after_s for move in part.moves)


def _of_tenants(settings: GuardSettings, part: Part) -> list[RequestRecord]:
    return [record for name in settings.tenants for record in part.records[name]]


def _in_time(records: Sequence[RequestRecord], target_s: float) -> float:
    """Share of what was offered."""
    good = sum(each.failure is None and _first_token_s(each) <= target_s for each in records)
    return good / len(records) if records else 1.0


def _first_token_s(record: RequestRecord) -> float:
    """Endless where none came."""
    return record.time_to_first_token if record.chunks else math.inf


def _accepted(record: RequestRecord) -> bool:
    """It got a response of status 200, whatever came in it."""
    return record.failure is None or record.failure.startswith(("error_", "cut_stream"))


def _since_end(settings: GuardSettings, at_s: float) -> float:
    return at_s - sum(duration_s for _, duration_s in settings.phases)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _minus(at_s: float | None, other_s: float) -> float | None:
    return None if at_s is None else at_s - other_s
