"""What a router measures, and its Prometheus page.

Owns the counts and histograms of one router, in a registry of its own, under the names that
vLLM's dashboards and the OpenTelemetry conventions for generative AI use. The counts are plain
numbers, kept by the event loop, so that a token costs an addition; Prometheus types are made when
the page is read. It knows nothing of streams; loads come in as snapshots.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from chairlift.router.placement import ReplicaView
from chairlift.router.tenant_metrics import TenantMetrics

__all__ = ["Histogram", "Move", "Outcome", "RequestEnd", "RouterMetrics"]

FIRST_TOKEN_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_EDGES = tuple(0.01 * 2**i for i in range(14))
TOKEN_EDGES = tuple(float(4**i) for i in range(14))


class Outcome(enum.StrEnum):
    """The four ways in which a request ends; each request ends in exactly one of them."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


class Move(enum.StrEnum):
    """Why a choice went on at another replica."""

    LOST = "lost"
    DRAINED = "drained"
    HEDGED = "hedged"


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How one request ended.

    Attributes:
        tenant: whose it was.
        label: ``stop`` or ``length`` if it finished, ``abort`` if it was cancelled, else the
            error's code.
        duration_s: from its start here to its end here.
        first_token_s: from its start to the arrival of its first token, if one arrived.
        output_tokens: of all choices together.
        prompt_tokens: of the prompt, once.
    """

    tenant: str
    outcome: Outcome
    label: str
    duration_s: float
    first_token_s: float | None
    output_tokens: int
    prompt_tokens: int


class Histogram:
    """Fixed buckets whose observations have a weight."""

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count ``value`` as ``weight`` observations; an edge belongs to the bucket below it."""
        self._counts[bisect_left(self._edges, value)] += weight
        self._sum += value * weight

    def family(self, name: str, text: str, labels: dict[str, str]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=list(labels))
        self.add_to(family, labels)
        return family

    def add_to(self, family: HistogramMetricFamily, labels: dict[str, str]) -> None:
        """Add this one to a family that has more than one."""
        bounds = [*map(floatToGoString, self._edges), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(list(labels.values()), buckets, self._sum)


class RouterMetrics:
    """One router's measurements.

    Attributes:
        started: requests that were ever submitted.
        ended: the same requests by outcome; what is missing is still open.
        moved: choices that went on elsewhere, by reason.
        generated_tokens: output tokens that arrived, whoever read them.
        besides: families that somebody else measures, for the same page.
    """

    def __init__(
        self,
        model_name: str,
        replicas: Callable[[], Sequence[ReplicaView]],
        *,
        router_id: str = "",
        tenants: TenantMetrics | None = None,
    ) -> None:
        """Start at zero.

        Args:
            model_name: a label.
            replicas: what is known of each, when the page is read.
            router_id: a label, where several routers answer at one address.
            tenants: told of every ending, and of the page.
        """
        self.started = 0
        self.ended = dict.fromkeys(Outcome, 0)
        self.moved = dict.fromkeys(Move, 0)
        self.generated_tokens = 0
        self.besides: Callable[[], Iterable[Metric]] = tuple
        self._prompt_tokens = 0
        self._replicas = replicas
        self._tenants = tenants
        router = {"router": router_id} if router_id else {}
        self._model = {"model_name": model_name} | router
        self._convention = router | {
            "gen_ai_operation_name": "text_completion",
            "gen_ai_provider_name": "chairlift",
            "gen_ai_request_model": model_name,
        }
        self._labels: Counter[tuple[Outcome, str]] = Counter()
        self._first_token = Histogram(FIRST_TOKEN_EDGES)
        self._inter_token = Histogram(PER_TOKEN_EDGES)
        self._finished_first_token = Histogram(FIRST_TOKEN_EDGES)
        self._finished_per_token = Histogram(PER_TOKEN_EDGES)
        self._finished_duration = Histogram(DURATION_EDGES)
        self._finished_tokens = {kind: Histogram(TOKEN_EDGES) for kind in ("input", "output")}
        self._registry = CollectorRegistry()
        self._registry.register(_Page(self.families))

    @property
    def open(self) -> int:
        """Requests that have started and not ended."""
        return self.started - sum(self.ended.values())

    def first_token(self, prompt_tokens: int, latency_s: float) -> None:
        """A request's first token arrived, so its prompt is computed."""
        self._prompt_tokens += prompt_tokens
        self._first_token.observe(latency_s)

    def next_tokens(self, number: int, elapsed_s: float) -> None:
        """``number`` tokens of one choice arrived in the ``elapsed_s`` since the one before."""
        self._inter_token.observe(elapsed_s / number, number)

    def end(self, end: RequestEnd) -> None:
        """A request ended; call once for each that started."""
        self.ended[end.outcome] += 1
        self._labels[end.outcome, end.label] += 1
        if self._tenants is not None:
            self._tenants.end(end.tenant, end.outcome.value, end.label)
        if end.outcome is not Outcome.FINISHED or end.first_token_s is None:
            return
        self._finished_duration.observe(end.duration_s)
        self._finished_first_token.observe(end.first_token_s)
        self._finished_tokens["input"].observe(end.prompt_tokens)
        self._finished_tokens["output"].observe(end.output_tokens)
        if end.output_tokens > 1:
            decoding_s = end.duration_s - end.first_token_s
            self._finished_per_token.observe(decoding_s / (end.output_tokens - 1))

    def render(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def families(self) -> Iterator[Metric]:
        """What the page is made of."""
        yield from self._request_families()
        yield from self._latency_families()
        yield from self._replica_families()
        if self._tenants is not None:
            yield from self._tenants.families()
        yield from self.besides()

    def _request_families(self) -> Iterator[Metric]:
        prefix = "chairlift_requests"
        yield _counter(f"{prefix}_started", "Requests submitted.", self._model, self.started)
        for outcome, number in self.ended.items():
            name, text = f"{prefix}_{outcome}", f"Requests that ended as {outcome}."
            yield _counter(name, text, self._model, number)
        yield _gauge(f"{prefix}_open", "Requests that have not ended.", self._model, self.open)
        text = "Choices that went on at another replica, by what happened to the one before."
        moves = CounterMetricFamily("chairlift_moves", text, labels=[*self._model, "reason"])
        for move, number in self.moved.items():
            moves.add_metric([*self._model.values(), move.value], number)
        yield moves
        text = "Prompt tokens of requests whose first token arrived."
        yield _counter("vllm:prompt_tokens", text, self._model, self._prompt_tokens)
        text = "Output tokens that arrived."
        yield _counter("vllm:generation_tokens", text, self._model, self.generated_tokens)
        finished = (Outcome.FINISHED, Outcome.CANCELLED)
        text = "Requests by finish reason; abort: the client went away."
        yield self._by_label("vllm:request_success", text, "finished_reason", finished)
        text = "Requests turned away, by reason."
        yield self._by_label("vllm:admission_rejections", text, "reason", (Outcome.REJECTED,))
        text = "Requests that failed, by reason."
        yield self._by_label(f"{prefix}_failures", text, "reason", (Outcome.FAILED,))

    def _latency_families(self) -> Iterator[Metric]:
        model, convention = self._model, self._convention
        text = "Seconds from submission to the first token."
        yield self._first_token.family("vllm:time_to_first_token_seconds", text, model)
        text = "Seconds between a choice's tokens, each token counted."
        yield self._inter_token.family("vllm:inter_token_latency_seconds", text, model)
        text = "Seconds from submission to the end of requests that finished."
        name = "vllm:e2e_request_latency_seconds"
        yield self._finished_duration.family(name, text, model)
        name = "gen_ai_server_request_duration_seconds"
        yield self._finished_duration.family(name, text, convention)
        text = "Seconds from submission to the first token of requests that finished."
        name = "gen_ai_server_time_to_first_token_seconds"
        yield self._finished_first_token.family(name, text, convention)
        text = "Seconds per output token after the first, of requests that finished."
        name = "vllm:request_time_per_output_token_seconds"
        yield self._finished_per_token.family(name, text, model)
        name = "gen_ai_server_time_per_output_token_seconds"
        yield self._finished_per_token.family(name, text, convention)
        text = "Tokens of requests that finished."
        labels = [*convention, "gen_ai_token_type"]
        usage = HistogramMetricFamily("gen_ai_client_token_usage", text, labels=labels)
        for kind, histogram in self._finished_tokens.items():
            histogram.add_to(usage, convention | {"gen_ai_token_type": kind})
        yield usage

    def _replica_families(self) -> Iterator[Metric]:
        labels = [*self._model, "replica"]
        families: tuple[GaugeMetricFamily | CounterMetricFamily, ...] = (
            GaugeMetricFamily("vllm:num_requests_running", "Sequences with a seat.", labels=labels),
            GaugeMetricFamily("vllm:num_requests_waiting", "Sequences without.", labels=labels),
            GaugeMetricFamily("vllm:kv_cache_usage_perc", "Used blocks; 1 is all.", labels=labels),
            CounterMetricFamily("vllm:num_preemptions", "Sequences paused.", labels=labels),
            CounterMetricFamily(
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                labels=labels,
            ),
            CounterMetricFamily(
                "vllm:prefix_cache_hits", "Prompt tokens found there.", labels=labels
            ),
            GaugeMetricFamily("chairlift_load_report_age_seconds", "Of the above.", labels=labels),
        )
        for view in self._replicas():
            if view.load is None or view.load_age_s is None:
                continue  # not known is not zero
            values = (
                view.load.running,
                view.load.waiting,
                view.load.blocks_used / max(view.load.blocks_total, 1),
                view.load.preemptions,
                view.load.cache_queries,
                view.load.cache_hits,
                view.load_age_s,
            )
            for family, value in zip(families, values, strict=True):
                family.add_metric([*self._model.values(), view.replica_id], value)
        yield from families

    def _by_label(
        self, name: str, text: str, label: str, outcomes: tuple[Outcome, ...]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=[*self._model, label])
        for (outcome, value), number in self._labels.items():
            if outcome in outcomes:
                family.add_metric([*self._model.values(), value], number)
        return family


class _Page(Collector):
    """Lets Prometheus's registry ask for the families when a page is read."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
