"""Alert rules for Prometheus, with the thresholds and owners of the Guard's policy.

Owns which alerts there are. They are made from the policy that is in force, so they cannot ask for
anything else than the Guard does; what they look at is what ``/metrics/cluster`` has, and for
certificates ``/metrics``. Whoever scrapes several routers has each figure several times, hence the
``max`` around all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.deployments.certificate_ends import METRIC
from chairlift.deployments.cluster_metrics import PREFIX

__all__ = ["RUNBOOKS", "alert_rules"]

RUNBOOKS = "docs/operations.md"
"""The page that has a runbook for each, under a heading that is the alert's name."""
LOOK_EVERY_S = 5
NO_REPLICA_S = 10
MINUTE_S = 60
HOUR_S = 3600
FORTNIGHT_S = 14 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class _Alert:
    """One rule."""

    name: str
    expression: str
    for_s: float
    severity: Literal["warning", "critical"]
    owner: str
    summary: str

    def rule(self, runbooks: str) -> dict[str, Any]:
        """As Prometheus has it."""
        name = f"Chairlift{self.name}"
        return {
            "alert": name,
            "expr": self.expression,
            "for": _duration(self.for_s),
            "labels": {"severity": self.severity, "owner": self.owner},
            "annotations": {
                "summary": self.summary,
                "runbook_url": f"{runbooks}#{name.lower()}",
            },
        }


def alert_rules(policy: GuardPolicy, runbooks: str = RUNBOOKS) -> str:
    """The file of rules that Prometheus loads; ``runbooks`` is where the page on operations is."""
    groups = [
        {
            "name": name,
            "interval": _duration(LOOK_EVERY_S),
            "rules": [alert.rule(runbooks) for alert in alerts],
        }
        for name, alerts in (
            ("chairlift-signals", _signals(policy)),
            ("chairlift-guard", _guard(policy)),
            ("chairlift-replicas", _replicas(policy)),
            ("chairlift-certificates", _certificates(policy)),
        )
    ]
    return str(yaml.safe_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=120))


def _signals(policy: GuardPolicy) -> Iterator[_Alert]:
    """One each; what freezes the Guard is for a person, against all else it acts itself."""
    for signal, its in policy.signals.items():
        # All signals are the worse the higher, but this one.
        beyond = "<=" if signal is Signal.STEPS_LEFT else ">="
        value = f'max({PREFIX}guard_signal_value{{signal="{signal.value}"}})'
        yield _Alert(
            "Signal" + signal.value.title().replace("_", ""),
            f"{value} {beyond} {its.threshold!r}",
            its.for_s,
            "critical" if its.rung is None else "warning",
            its.owner,
            f"{its.why}: {signal.value} is at {{{{ $value }}}}, threshold {its.threshold:g}",
        )


def _guard(policy: GuardPolicy) -> Iterator[_Alert]:
    """What the Guard cannot do, or cannot know."""
    telemetry = policy.signals[Signal.CONTRADICTION].owner
    serving = policy.signals[Signal.BURN_RATE].owner
    yield _Alert(
        "GuardPage",
        f"max({PREFIX}guard_rung) >= {Rung.PAGE.value}",
        0,
        "critical",
        serving,
        "the Guard is on rung {{ $value }}: what software can do has not helped",
    )
    yield _Alert(
        "GuardWaiting",
        f"max({PREFIX}guard_waiting) == 1",
        0,
        "critical",
        serving,
        "the next rung waits for a person: chairlift guard approve",
    )
    yield _Alert(
        "GuardHeld",
        f"max({PREFIX}guard_held) == 1",
        HOUR_S,
        "warning",
        serving,
        "a person has held the Guard for over an hour",
    )
    yield _Alert(
        "GuardFrozen",
        f"max({PREFIX}guard_frozen) == 1",
        0,
        "critical",
        telemetry,
        "telemetry contradicts itself, so the Guard decides nothing",
    )
    yield _Alert(
        "CallsFail",
        f"max(increase({PREFIX}guard_calls_failed_total[15m])) > 0",
        0,
        "warning",
        telemetry,
        "a person was to be called, and the call did not arrive",
    )
    yield _Alert(
        "HubMissing",
        f"absent({PREFIX}routers)",
        MINUTE_S,
        "critical",
        telemetry,
        "no figures of the cluster, and nobody watches over it",
    )
    yield _Alert(
        "Unbalanced",
        f"min({PREFIX}requests_balanced) == 0",
        MINUTE_S,
        "warning",
        telemetry,
        "requests are not accounted for",
    )


def _replicas(policy: GuardPolicy) -> Iterator[_Alert]:
    """What is replaced by itself, but not for ever."""
    serving = policy.signals[Signal.BURN_RATE].owner
    yield _Alert(
        "ReplicaDown",
        f"min({PREFIX}replica_live) == 0",
        MINUTE_S,
        "warning",
        serving,
        "a replica takes no requests, and no other has come in its place",
    )
    yield _Alert(
        "NoReplica",
        f"max({PREFIX}replica_live) == 0",
        NO_REPLICA_S,
        "critical",
        serving,
        "no replica takes requests: they wait, and are refused then",
    )


def _certificates(policy: GuardPolicy) -> Iterator[_Alert]:
    """Of the page of each router, where the others are of the cluster's."""
    yield _Alert(
        "CertificateEnds",
        f"min({METRIC}) - time() < {FORTNIGHT_S}",
        HOUR_S,
        "warning",
        policy.signals[Signal.BURN_RATE].owner,
        "a certificate holds for less than a fortnight: {{ $value | humanizeDuration }}",
    )


def _duration(seconds: float) -> str:
    """As Prometheus writes it, which knows no fractions."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{1000 * seconds:.0f}ms"
