"""The cluster's figures as the Hub answers them, in numbers that a test can look for."""

from dataclasses import asdict
from typing import Any

from chairlift.cluster.fairness_figures import Fairness
from chairlift.cluster.figures import (
    Figures,
    Latency,
    PlaceFigures,
    QueueFigures,
    RequestFigures,
    Targets,
    Totals,
    WindowFigures,
)
from chairlift.cluster.guard_state import Move, MoveKind, Rung, Signal
from chairlift.cluster.replica_figures import ReplicaFigures
from chairlift.cluster.telemetry import Failure
from chairlift.deployments.guard_view import move_view

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
        models={"SmolLM2-135M-Instruct": everything},
        replicas={
            "replica-1": PlaceFigures(400, 370, 1, Latency(0.085, 0.24, 0.713)),
            "replica-2": PlaceFigures(340, 320, 2, Latency(0.071, 0.2, 0.55)),
        },
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


def guard_figures(**changes: Any) -> dict[str, Any]:
    """A Guard one rung up because of one replica's KV cache; ``changes``: fields of it."""
    signals = {
        signal.value: {
            "value": None,
            "threshold": 1.0,
            "where": "",
            "owner": "capacity",
            "active": False,
        }
        for signal in Signal
    }
    signals["kv_use"] |= {"value": 0.97, "threshold": 0.9, "where": "replica-1", "active": True}
    signals["unfairness"] |= {"value": 0.4, "owner": "fairness"}
    up = Move(
        at=1_699_999_990.0,
        version=12,
        kind=MoveKind.UP,
        before=Rung.NORMAL,
        after=Rung.NO_SPECULATION,
        signal="kv_use",
        value=0.95,
        threshold=0.9,
        where="replica-1",
        owner="capacity",
        what="hedging off",
    )
    known = {
        "mode": "act",
        "version": 12,
        "rung": "no_speculation",
        "rung_number": 1,
        "since": 1_699_999_990.0,
        "admit": 1.0,
        "held_by": None,
        "waiting_for": None,
        "frozen": False,
        "overrides": {},
        "open": 72,
        "controls": {"token_budget": 512, "max_sequences": 32, "lowest": "batch"},
        "signals": signals,
        "moves": [move_view(up)],
        "moves_total": [{"kind": "up", "signal": "kv_use", "rung": "no_speculation", "count": 1}],
        "calls": {"sent": 3, "failed": 1, "dropped": 0},
    }
    return known | changes


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
            "replica-1": ReplicaFigures(True, 0.21, 29, 3, 32, 0.718, 4, 0.42, False, 0.012, 310),
            "replica-2": ReplicaFigures(True, 0.33, 24, 0, 32, 0.551, 0, 0.39, False, 0.0, None),
            "replica-3": ReplicaFigures(False, *(None,) * 10),
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
        failures=(
            Failure(1_699_999_990, "initech", "queue_full", "chatcmpl-7", "", True),
            Failure(1_699_999_951, SCRIPT, "replica_lost", SCRIPT, "replica-2", False),
        ),
        failure_reasons={"queue_full": 6262, "replica_lost": 86},
    )
    return asdict(made) | {"guard": guard_figures()} | changes
