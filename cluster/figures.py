"""What the windows come to: rates, latencies, goodput and cost, and how replicas and queues stand.

Owns the definitions, but for those of fairness (``fairness_figures``). What is not known is None,
never 0. All figures are plain dataclasses, so ``dataclasses.asdict`` makes them what JSON can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chairlift.cluster.fairness_figures import BatchShape, Fairness, fairness
from chairlift.cluster.replica_figures import ReplicaFigures, replica_figures
from chairlift.cluster.sketch import Sketch
from chairlift.cluster.telemetry import Bucket, Failure, Report, Series, Tally
from chairlift.cluster.windows import SPANS, Fold, Window

__all__ = [
    "Figures",
    "FiguresSettings",
    "Latency",
    "PlaceFigures",
    "QueueFigures",
    "RequestFigures",
    "Targets",
    "Totals",
    "WindowFigures",
    "figures",
]


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request keeps that met them; whoever counts the requests knows them too.

    Attributes:
        first_token_s: from its arrival to the first token, at the most.
        per_token_s: for each token after it, at the most, in the mean of the request.
    """

    first_token_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True)
class FiguresSettings:
    """What the figures are made with.

    Attributes:
        targets: by which requests were counted as met.
        price_per_replica_hour: in any currency; None where that is of no interest.
        shape: of batches; None leaves the bound of the service gap unknown.
    """

    targets: Targets
    price_per_replica_hour: float | None = None
    shape: BatchShape | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in seconds, each within 1% of a number that was there; None without any."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Of some requests in one window; each event counts in the second when it happened.

    Attributes:
        started, finished, cancelled, rejected, failed: how many were; over the window's length
            they are the rates. Those that ended did not all start in it.
        met: finished ones that kept both targets.
        requests_per_s, met_per_s: started, and met; the latter is the goodput.
        tokens_per_s, prompt_tokens_per_s: output tokens that came, and tokens of prompts whose
            first token came.
        goodput: share of ``met`` in all that ended, whether finished, cancelled, rejected or
            failed; None if none did.
        on_time: share of the output tokens that came by arrival + TTFT target + i × TPOT target.
        cached_share: of the prompt tokens, those that the prefix cache had.
        ttft_s: from arrival to the first token, of requests whose first token came.
        inter_token_s: between tokens of a choice, each token counted.
        duration_s: from arrival to the end, of finished requests only.
        queue_s: from arrival until it was sent to a replica.
    """

    started: int
    finished: int
    cancelled: int
    rejected: int
    failed: int
    met: int
    requests_per_s: float
    met_per_s: float
    tokens_per_s: float
    prompt_tokens_per_s: float
    goodput: float | None
    on_time: float | None
    cached_share: float | None
    ttft_s: Latency
    inter_token_s: Latency
    duration_s: Latency
    queue_s: Latency


@dataclass(frozen=True, slots=True)
class PlaceFigures:
    """What became of requests at one replica in one window.

    Attributes:
        sent: to it, each time; some go on elsewhere.
        finished: that ended well there.
        failed: that were lost there, whether they went on elsewhere or not.
        ttft_s: from arrival to the first token, of requests whose first token came from there.
    """

    sent: int
    finished: int
    failed: int
    ttft_s: Latency


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Of one window.

    Attributes:
        span_s: its length in seconds, less than its name says by the window's resolution at most.
        all, tenants, classes, lengths: of all requests, and by tenant, priority class and
            prompt-length class.
        models: by model; where there are several, without what routers did that have long gone.
        replicas: by id.
        fairness: among the tenants.
        cost_per_met: price of all live replicas in that time over the requests that met their
            targets; None without a price, without such requests, or if no replica is live.
    """

    span_s: int
    all: RequestFigures
    tenants: dict[str, RequestFigures]
    classes: dict[str, RequestFigures]
    lengths: dict[str, RequestFigures]
    models: dict[str, RequestFigures]
    replicas: dict[str, PlaceFigures]
    fairness: Fairness
    cost_per_met: float | None


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A tenant's requests that wait in routers now; ``oldest_s``: age of the oldest."""

    queued: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Since each router started, those that have gone since the Hub started included.

    Attributes:
        open: by the routers' own count; None if one has none.
        lost: had not ended when their router was last heard of, which has departed.
        balanced: started = finished + cancelled + rejected + failed + open + lost; None if not
            known.
    """

    started: int
    finished: int
    cancelled: int
    rejected: int
    failed: int
    met: int
    prompt_tokens: int
    output_tokens: int
    open: int | None
    lost: int
    balanced: bool | None


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is known of the cluster.

    Attributes:
        at: when, in seconds of the wall clock.
        models: that are served.
        routers: that are there.
        windows: by the names of ``cluster.windows.SPANS``.
        replicas: by id; what present routers say of them.
        queues: by tenant.
        oldest_waiting_s: age of the request that waits longest; None if none waits.
        failures: requests that failed or were turned away, the newest first; not all of them.
        failure_reasons: how many were since each router started, by the error's code.
    """

    at: float
    models: tuple[str, ...]
    routers: int
    targets: Targets
    windows: dict[str, WindowFigures]
    replicas: dict[str, ReplicaFigures]
    queues: dict[str, QueueFigures]
    oldest_waiting_s: float | None
    totals: Totals
    failures: tuple[Failure, ...]
    failure_reasons: dict[str, int]


def figures(fold: Fold, settings: FiguresSettings, now: float) -> Figures:
    """The figures of this moment; ``now``: seconds of the wall clock."""
    present = fold.present(now)
    replicas = replica_figures(present)
    live = sum(replica.live for replica in replicas.values())
    weights = fold.weights()
    queues = _queues(present)
    models = tuple(sorted({report.model for report, _ in present}))
    ages = [queue.oldest_s for queue in queues.values() if queue.oldest_s is not None]
    return Figures(
        at=now,
        models=models,
        routers=len(present),
        targets=settings.targets,
        windows={
            name: _window(fold.window(span_s, now), settings, weights, live, models)
            for name, span_s in SPANS.items()
        },
        replicas=replicas,
        queues=queues,
        oldest_waiting_s=max(ages, default=None),
        totals=_totals(fold, present, now),
        failures=tuple(reversed(fold.failures)),
        failure_reasons=dict(sorted(fold.reasons().items())),
    )


def _window(
    window: Window,
    settings: FiguresSettings,
    weights: dict[str, float],
    live: int,
    models: tuple[str, ...],
) -> WindowFigures:
    def by(key: Callable[[Series], str]) -> dict[str, RequestFigures]:
        groups: dict[str, list[Tally]] = {}
        for series, tally in window.bucket.items():
            groups.setdefault(key(series), []).append(tally)
        return {name: _requests(groups[name], window.span_s) for name in sorted(groups)}

    everything = _requests(window.bucket.values(), window.span_s)
    by_model = {name: _requests([each], window.span_s) for name, each in window.models.items()}
    if not by_model and len(models) == 1:
        by_model = {models[0]: everything}
    cost = None
    if settings.price_per_replica_hour is not None and everything.met and live:
        hours = live * window.span_s / 3600
        cost = settings.price_per_replica_hour * hours / everything.met
    return WindowFigures(
        span_s=window.span_s,
        all=everything,
        tenants=by(lambda series: series.tenant),
        classes=by(lambda series: series.priority),
        lengths=by(lambda series: series.length),
        models=by_model,
        replicas={name: _place(window.places[name]) for name in sorted(window.places)},
        fairness=fairness(window, weights, settings.shape),
        cost_per_met=cost,
    )


def _place(tally: Tally) -> PlaceFigures:
    return PlaceFigures(tally.started, tally.finished, tally.failed, _latency(tally.first_token))


def _requests(tallies: Iterable[Tally], span_s: int) -> RequestFigures:
    sum_ = _sum(tallies)
    return RequestFigures(
        started=sum_.started,
        finished=sum_.finished,
        cancelled=sum_.cancelled,
        rejected=sum_.rejected,
        failed=sum_.failed,
        met=sum_.met,
        requests_per_s=sum_.started / span_s,
        met_per_s=sum_.met / span_s,
        tokens_per_s=sum_.output_tokens / span_s,
        prompt_tokens_per_s=sum_.prompt_tokens / span_s,
        goodput=_share(sum_.met, sum_.ended),
        on_time=_share(sum_.on_time, sum_.output_tokens),
        cached_share=_share(sum_.cached_tokens, sum_.prompt_tokens),
        ttft_s=_latency(sum_.first_token),
        inter_token_s=_latency(sum_.inter_token),
        duration_s=_latency(sum_.duration),
        queue_s=_latency(sum_.queue_wait),
    )


def _sum(tallies: Iterable[Tally]) -> Tally:
    sum_ = Tally()
    for tally in tallies:
        sum_.merge(tally)
    return sum_


def _latency(sketch: Sketch) -> Latency:
    return Latency(*(sketch.quantile(share) for share in (0.5, 0.95, 0.99)))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _queues(present: list[tuple[Report, float]]) -> dict[str, QueueFigures]:
    queues: dict[str, QueueFigures] = {}
    for report, silent_s in present:
        for tenant, queued in report.queued.items():
            before = queues.get(tenant, QueueFigures(0, None))
            oldest_s = before.oldest_s
            if tenant in report.oldest_s:
                oldest_s = max(report.oldest_s[tenant] + silent_s, oldest_s or 0.0)
            queues[tenant] = QueueFigures(before.queued + queued, oldest_s)
    return dict(sorted(queues.items()))


def _totals(fold: Fold, present: list[tuple[Report, float]], now: float) -> Totals:
    totals: Bucket = fold.totals()
    sum_ = _sum(totals.values())
    opens = [report.open for report, _ in present]
    known = [each for each in opens if each is not None]
    open_ = sum(known) if len(known) == len(opens) else None
    lost = fold.lost(now)
    return Totals(
        started=sum_.started,
        finished=sum_.finished,
        cancelled=sum_.cancelled,
        rejected=sum_.rejected,
        failed=sum_.failed,
        met=sum_.met,
        prompt_tokens=sum_.prompt_tokens,
        output_tokens=sum_.output_tokens,
        open=open_,
        lost=lost,
        balanced=None if open_ is None else sum_.started == sum_.ended + open_ + lost,
    )
