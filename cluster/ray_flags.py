"""Flags of Ray that must stand in the environment of each of its processes, on every node.

Owns their one list, for whoever starts Ray: ``chairlift serve`` on its own machine, ``chairlift
env`` for those who start nodes by hand, and the manifests of clusters. It knows no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CLUSTER_FLAGS", "FLAGS"]

FLAGS: Mapping[str, str] = {
    # One event loop a process, no Serve proxy: tokens never cross Serve (docs/adr/0006).
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    # What Ray does all the time is taken from the kernels; so it does two fifths less of it.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    "RAY_raylet_report_resources_period_milliseconds": "500",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    # Nothing leaves the machine that its owner did not ask for.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

CLUSTER_FLAGS: Mapping[str, str] = {
    **FLAGS,
    # Serving goes on without the head node; so the others wait for another one, not a minute alone.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    # A node that is silent for about 20 s is lost, not 65; routers do without it after 1.5 s.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}
"""Of a cluster of several nodes."""
