"""``chairlift monitoring``: write what Grafana and Prometheus need to watch a service.

Owns the two files' names. The dashboard is packaged as it is; the alert rules are made from the
Guard's policy.
"""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_policy import load_policy
from chairlift.deployments.alerts import RUNBOOKS, alert_rules

__all__ = ["add_arguments", "run"]

DASHBOARD, ALERTS = "dashboard.json", "alerts.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``monitoring``."""
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help=f"where to write {DASHBOARD} and {ALERTS}"
    )
    parser.add_argument(
        "--guard",
        metavar="FILE",
        help="the Guard's policy, as guard.file has it (default: the one that ships)",
    )
    parser.add_argument(
        "--runbooks",
        metavar="URL",
        default=RUNBOOKS,
        help=f"where people find the page on operations, for links in alerts ({RUNBOOKS})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write both. Raises ConfigError for a policy that is none, or a folder that cannot be."""
    policy, folder = load_policy(arguments.guard), Path(arguments.out)
    grafana = resources.files("chairlift.deployments").joinpath("grafana", DASHBOARD)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DASHBOARD).write_bytes(grafana.read_bytes())
        (folder / ALERTS).write_text(alert_rules(policy, arguments.runbooks), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error.strerror}") from None
    print(f"{folder / DASHBOARD}: for Grafana; {folder / ALERTS}: for Prometheus")
    return 0
