"""Runs and plans of studies that were made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from chairlift.evaluation.study_plan import Plan, TokenTargets, parse_plan
from chairlift.evaluation.study_run import Fate, Outcome, Run, Use

TARGETS = TokenTargets(first_token_s=1.0, per_token_s=0.1)


def outcome(number: int = 0, **fields: Any) -> Outcome:
    """Of four tokens, the first after 0.5 s and then one each 0.05 s, unless told otherwise."""
    intended = fields.pop("intended_s", 0.0)
    tokens = fields.pop("tokens_s", tuple(intended + 0.5 + 0.05 * i for i in range(4)))
    known: dict[str, Any] = {
        "tenant": "all",
        "prompt": 10,
        "asked": 4,
        "sent_s": intended,
        "ended_s": tokens[-1] if tokens else intended,
        "fate": Fate.COMPLETED,
        "digest": f"d{number}",
        "alone_s": 0.1,
    }
    return Outcome(number=number, intended_s=intended, tokens_s=tokens, **(known | fields))


def run(arm: str, round: int, outcomes: Sequence[Outcome] = (outcome(),), **fields: Any) -> Run:
    """Of one second on the workload ``load``."""
    known: dict[str, Any] = {
        "workload": "load",
        "order": 0,
        "began_at": 0.0,
        "seconds": 1.0,
        "replicas": 1,
        "use": Use(),
    }
    return Run(arm=arm, round=round, outcomes=tuple(outcomes), **(known | fields))


def plan(*thresholds: Mapping[str, object], together: bool = True, **fields: object) -> Plan:
    """Of the arms ``new`` and ``old``; thresholds are of ``new``."""
    words: dict[str, object] = {
        "name": "made-up",
        "decision": "which arm serves",
        "population": "none",
        "if_wrong": {"yes": "slower", "no": "slower"},
        "alternative": "old",
        "overturned_by": ["anything"],
        "target": {"kind": "engine"},
        "workloads": {
            "load": {
                "source": {
                    "kind": "drawn",
                    "rate": 1.0,
                    "prompt": "constant:10",
                    "output": "constant:4",
                },
                "requests": 10,
                "limits": {"prompt": 100, "output": 100},
                "together": together,
            }
        },
        "arms": {"new": {}, "old": {"batching": "static"}},
        "thresholds": [
            {"name": str(i), "workload": "load", "arm": "new", **dict(each)}
            for i, each in enumerate(thresholds)
        ],
        "targets": [TARGETS.model_dump()],
        "rounds": 6,
    }
    return parse_plan(yaml.safe_dump(words | fields), "a plan")
