"""The cluster's figures as the Hub answers them, in numbers that a test can look for."""

from dataclasses import asdict
from typing import Any

from chairlift.cluster.fairness_figures import Fairness
from chairlift.cluster.figures import (
    Figures,
    Latency,
    QueueFigures,
    ReplicaFigures,
    RequestFigures,
    Targets,
    Totals,
    WindowFigures,
)

SCRIPT = "<script>alert(1)</script>"
"""The name of a tenant who means harm."""

NOTHING = Latency(None, None, None)


def requests(share: float, *, slow: float = 1.0) -> RequestFigures:
    """So large a share of all requests, with latencies so many times as long."""
    return RequestFigures(
        started=round(750 * share),
        finished=round(690 * share),
        cancelled=round(12 * share),
        rejected=round(36 * share),
        failed=round(3 * share),
        met=round(650 * share),
        requests_per_s=12.5 * share,
        met_per_s=10.8 * share,
        tokens_per_s=1234.0 * share,
        prompt_tokens_per_s=4321.0 * share,
        goodput=0.877,
        on_time=0.983,
        cached_share=0.418,
        ttft_s=Latency(0.085 * slow, 0.24 * slow, 0.713 * slow),
        inter_token_s=Latency(0.021 * slow, 0.034 * slow, 0.0621 * slow),
        duration_s=Latency(2.1 * slow, 6.5 * slow, 9.25 * slow),
        queue_s=Latency(0.004 * slow, 0.1 * slow, 0.35 * slow),
    )


def idle() -> RequestFigures:
    """A window in which nothing happened."""
    return RequestFigures(*(0,) * 6, *(0.0,) * 4, *(None,) * 3, NOTHING, NOTHING, NOTHING, NOTHING)


def window(span_s: int, everything: RequestFigures) -> WindowFigures:
    return WindowFigures(
        span_s=span_s,
        all=everything,
        tenants={"acme": requests(0.6), "initech": requests(0.3, slow=1.4), SCRIPT: idle()},
        classes={"interactive": requests(0.7), "batch": requests(0.3, slow=2.5)},
        lengths={"≤128": requests(0.5, slow=0.6), "≤2048": requests(0.5, slow=1.8)},
        fairness=Fairness(
            backlogged=("acme", "initech"),
            weighted_service={"acme": 20480.0, "initech": 18900.0},
            jain=0.9984,
            gap=1580.0,
            gap_bound=8192.0,
            slowdown_p99={"acme": 2.31, "initech": 3.07},
            slowdown_ratio=1.14,
            refused={"acme": 0.0, "initech": 0.144},
            weights={"acme": 2.0, "initech": 1.0},
            service_share={"acme": 0.684, "initech": 0.316, SCRIPT: 0.0},
        ),
        cost_per_met=None,
    )


def cluster_figures(**changes: Any) -> dict[str, Any]:
    """Two replicas that serve, one of which nothing is known; ``changes``: fields of it."""
    spans = {"10s": 10, "1m": 60, "5m": 300, "1h": 3600}
    made = Figures(
        at=1_700_000_000.0,
        models=("SmolLM2-135M-Instruct",),
        routers=2,
        targets=Targets(1.0, 0.1),
        windows={name: window(span_s, requests(1.0)) for name, span_s in spans.items()},
        replicas={
            "replica-1": ReplicaFigures(True, 0.21, 29, 3, 32, 0.718, 4, 0.42, False),
            "replica-2": ReplicaFigures(True, 0.33, 24, 0, 32, 0.551, 0, 0.39, False),
            "replica-3": ReplicaFigures(False, None, None, None, None, None, None, None, None),
        },
        queues={"initech": QueueFigures(17, 0.87), SCRIPT: QueueFigures(2, 0.05)},
        oldest_waiting_s=0.87,
        totals=Totals(
            started=98765,
            finished=91234,
            cancelled=1111,
            rejected=6262,
            failed=86,
            met=88000,
            prompt_tokens=31_000_000,
            output_tokens=9_400_000,
            open=72,
            lost=0,
            balanced=True,
        ),
    )
    return asdict(made) | changes
