"""Whether any installed package has a known vulnerability, as far as the advisories can be had.

They are asked of a service, so with ``--where-possible`` nothing is wrong where it cannot be
reached; but it is said, and so is how many packages it knows, for pip-audit finds nothing in those
that it does not know and calls that well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main", "verdict"]

COMMAND = ("-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off")
SERVICE_TIMEOUT_S = 5
TIMEOUT_S = 300.0


def verdict(report: str, where_possible: bool) -> tuple[int, list[str]]:
    """Exit code and lines, from pip-audit's JSON; anything else means that it found nobody."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, LookupError, TypeError):
        packages = []
    known = [each for each in packages if "vulns" in each]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, "
        f"mended in {', '.join(found['fix_versions']) or 'no version yet'}"
        for each in known
        for found in each["vulns"]
    ]
    if not known:
        return int(not where_possible), ["not audited: the service of advisories is out of reach"]
    lines.append(f"audited {len(known)} of {len(packages)} packages")
    return int(len(lines) > 1), lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was found; 0 if nothing was."""
    arguments = sys.argv[1:] if argv is None else argv
    command = [sys.executable, *COMMAND, "--timeout", str(SERVICE_TIMEOUT_S), "-f", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        report = done.stdout
    except subprocess.TimeoutExpired:
        report = ""
    code, lines = verdict(report, "--where-possible" in arguments)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
