"""What a running service takes: memory and CPU time of each of its processes.

    python -m chairlift.evaluation.memory PID [--seconds 10]

PID is that of ``chairlift serve``. PSS counts a page that n processes share as an n-th of a page in
each of them, so it adds up; RSS counts it whole in each. Linux only.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

__all__ = ["Usage", "main", "measure", "parse_rollup", "short_name", "table"]

_KIB_PER_MIB = 1024
_MAX_NAME = 44


@dataclass(frozen=True, slots=True)
class Usage:
    """One process: memory in KiB, and the share of one core that it took."""

    name: str
    pid: int
    pss: int
    rss: int
    cpu: float


def measure(root: int, seconds: float) -> list[Usage]:
    """The process and all below it, the greatest first; those that end meanwhile are left out.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    process = psutil.Process(root)
    found = [process, *process.children(recursive=True)]
    before = {each.pid: _cpu_seconds(each) for each in found}
    time.sleep(seconds)
    usages = []
    for each in found:
        try:
            used = _cpu_seconds(each) - before[each.pid]
            with open(f"/proc/{each.pid}/smaps_rollup", encoding="ascii") as file:
                pss, rss = parse_rollup(file)
            name = short_name(each.cmdline())
        except (OSError, psutil.Error):
            continue
        usages.append(Usage(name, each.pid, pss, rss, used / seconds))
    return sorted(usages, key=lambda usage: -usage.pss)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def parse_rollup(lines: Iterable[str]) -> tuple[int, int]:
    """PSS and RSS in KiB, from ``/proc/PID/smaps_rollup``."""
    fields = dict(re.findall(r"^(\w+): +(\d+) kB$", "".join(lines), re.MULTILINE))
    return int(fields["Pss"]), int(fields["Rss"])


def short_name(command: Sequence[str]) -> str:
    """What the process is: Ray's title of it, or the program's file or module."""
    words = [word for word in command if not word.startswith("-")]
    python = len(words) > 1 and "python" in words[0].rpartition("/")[2]
    name = words[1 if python else 0] if words else "?"
    return name.rpartition("/")[2][:_MAX_NAME]


def table(usages: Sequence[Usage]) -> str:
    """A line a process, and the sum."""
    lines = [f"{'process':{_MAX_NAME}} {'pid':>8} {'PSS MiB':>8} {'RSS MiB':>8} {'CPU %':>6}"]
    total = Usage(
        "sum",
        pid=0,
        pss=sum(each.pss for each in usages),
        rss=sum(each.rss for each in usages),
        cpu=sum(each.cpu for each in usages),
    )
    for each in (*usages, total):
        lines.append(
            f"{each.name:{_MAX_NAME}} {each.pid or '':>8} {each.pss / _KIB_PER_MIB:8.0f} "
            f"{each.rss / _KIB_PER_MIB:8.0f} {100 * each.cpu:6.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("pid", type=int, help="process id of `chairlift serve`")
    parser.add_argument("--seconds", type=float, default=5.0, help="to watch CPU time (5)")
    arguments = parser.parse_args(argv)
    try:
        print(table(measure(arguments.pid, arguments.seconds)))
    except psutil.NoSuchProcess:
        print(f"no process {arguments.pid}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
