"""``python -m chairlift.evaluation.drills NAME``: break something on purpose, and look.

Owns the command line. Each drill starts a service of its own, does it harm, and reports what its
users saw beside what was promised; the thresholds stand in the drill's settings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from chairlift.evaluation.drill_apart import ApartSettings
from chairlift.evaluation.drill_apart import run as apart
from chairlift.evaluation.drill_flood import FloodSettings
from chairlift.evaluation.drill_flood import run as flood
from chairlift.evaluation.drill_guard import GuardSettings
from chairlift.evaluation.drill_guard import run as guard
from chairlift.evaluation.drill_guard_faults import GuardFaultSettings
from chairlift.evaluation.drill_guard_faults import run as guard_faults
from chairlift.evaluation.drill_head import HeadSettings
from chairlift.evaluation.drill_head import run as head
from chairlift.evaluation.drill_incident import IncidentSettings
from chairlift.evaluation.drill_incident import run as incident
from chairlift.evaluation.drill_kill import KillSettings
from chairlift.evaluation.drill_kill import run as kill
from chairlift.evaluation.drill_node import NodeSettings
from chairlift.evaluation.drill_node import run as node
from chairlift.evaluation.drill_overload import OverloadSettings
from chairlift.evaluation.drill_overload import run as overload
from chairlift.evaluation.drill_partition import PartitionSettings
from chairlift.evaluation.drill_partition import run as partition
from chairlift.evaluation.drill_partition import run_hub as partition_hub
from chairlift.evaluation.drill_prefix import PrefixSettings
from chairlift.evaluation.drill_prefix import run as prefix
from chairlift.evaluation.drill_rank import RankSettings
from chairlift.evaluation.drill_rank import run as rank
from chairlift.evaluation.drill_report import Report
from chairlift.evaluation.drill_router import RouterSettings
from chairlift.evaluation.drill_router import run as router
from chairlift.evaluation.drill_stop import StopSettings
from chairlift.evaluation.drill_stop import run as stop
from chairlift.evaluation.drill_upgrade import UpgradeSettings
from chairlift.evaluation.drill_upgrade import run as upgrade
from chairlift.evaluation.drill_vanish import VanishSettings
from chairlift.evaluation.drill_vanish import run as vanish

__all__ = ["main"]


def _drills(*, real: bool) -> dict[str, Callable[[], Report]]:
    """By name; with the simulated engine, or with the ``real`` model and less to do."""
    return {
        "kill": lambda: kill(KillSettings.real() if real else KillSettings()),
        "rank": lambda: rank(RankSettings.real() if real else RankSettings()),
        "rank-hang": lambda: rank(RankSettings.hang(real=real)),
        "stop": lambda: stop(StopSettings.real() if real else StopSettings()),
        "flood": lambda: flood(FloodSettings.real() if real else FloodSettings()),
        "overload": lambda: overload(OverloadSettings.real() if real else OverloadSettings()),
        "guard": lambda: guard(GuardSettings.real() if real else GuardSettings()),
        "guard-faults": lambda: guard_faults(GuardFaultSettings()),
        "incident": lambda: incident(IncidentSettings()),
        "vanish": lambda: vanish(VanishSettings.real() if real else VanishSettings()),
        "prefix": lambda: prefix(PrefixSettings.real() if real else PrefixSettings()),
        "node": lambda: node(NodeSettings()),
        "head": lambda: head(HeadSettings()),
        "upgrade": lambda: upgrade(UpgradeSettings()),
        "router": lambda: router(RouterSettings()),
        "apart": lambda: apart(ApartSettings()),
        "partition": lambda: partition(PartitionSettings()),
        "partition-hub": lambda: partition_hub(PartitionSettings()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a drill; 0 if every claim holds."""
    parser = argparse.ArgumentParser(prog="python -m chairlift.evaluation.drills")
    parser.add_argument("name", choices=list(_drills(real=False)), help="what to break")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too")
    parser.add_argument(
        "--real",
        action="store_true",
        help="use the embedded model, with fewer requests, instead of a simulated engine",
    )
    flags = parser.parse_args(arguments)
    report = _drills(real=flags.real)[flags.name]()
    print(report.text())
    if flags.json:
        report.write(flags.json)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
