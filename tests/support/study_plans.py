"""Small plans of studies."""

from __future__ import annotations

from typing import Any

from chairlift.evaluation.study_plan import Plan

TARGETS = [{"first_token_s": 1.0, "per_token_s": 0.1}]
DRAWN = {"kind": "drawn", "rate": 5.0, "prompt": "uniform:4,12", "output": "uniform:2,16"}


def workload(source: dict[str, Any] | None = None, requests: int = 40, **fields) -> dict[str, Any]:
    """With ample limits."""
    limits = {"prompt": 64, "output": 32}
    return {"source": source or DRAWN, "requests": requests, "limits": limits} | fields


def plan_of(
    arms: dict[str, Any] | None = None,
    workloads: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    **fields,
) -> Plan:
    """Two arms on one drawn workload in simulated time, if nothing else is said."""
    arms = arms or {"one": {}, "other": {"batching": "static"}}
    workloads = workloads or {"load": workload()}
    threshold = {
        "name": "faster",
        "workload": next(iter(workloads)),
        "measure": "output_tokens_per_s",
        "arm": next(iter(arms)),
        "at_least": 1.0,
    }
    return Plan.model_validate(
        {
            "name": "small",
            "decision": "which",
            "population": "tests",
            "if_wrong": {"yes": "slower", "no": "slower"},
            "alternative": "static",
            "overturned_by": ["figures"],
            "target": target or {"kind": "simulated"},
            "workloads": workloads,
            "arms": arms,
            "thresholds": [threshold],
            "targets": TARGETS,
            "rounds": 2,
            "seats": 4,
            "token_budget": 64,
            "block_size": 4,
        }
        | fields
    )
