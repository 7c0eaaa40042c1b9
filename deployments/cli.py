"""The command line ``chairlift``: one subcommand a module, each with its flags and its ``run``.

Owns the exit codes: 0 done, 1 the command failed, 2 wrong use or a start that could not be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from chairlift import __version__
from chairlift.cluster.errors import StartupError
from chairlift.deployments import (
    chat,
    doctor,
    explain,
    guard,
    key,
    ledger,
    monitoring,
    replay,
    serve,
    top,
)
from chairlift.evaluation import bench

__all__ = ["main"]

COMMANDS = {
    "serve": (serve, "start the whole service on this machine"),
    "chat": (chat, "chat with a running service in the terminal"),
    "top": (top, "watch a running service in the terminal"),
    "guard": (guard, "see what watches over a running service, and act by hand"),
    "bench": (bench, "load a running service and measure it"),
    "monitoring": (monitoring, "write a Grafana dashboard and alert rules for Prometheus"),
    "key": (key, "make an API key for a tenant"),
    "doctor": (doctor, "say what this machine can run"),
    "ledger": (ledger, "show what a ledger file holds"),
    "replay": (replay, "decide everything in a ledger again, and compare"),
    "explain": (explain, "tell the story of one request, from a ledger"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="chairlift", description="A distributed server for language models."
    )
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except StartupError as error:
        print(f"chairlift: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
