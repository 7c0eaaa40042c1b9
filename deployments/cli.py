"""The command line ``chairlift``: one subcommand a module, each with its flags and its ``run``.

Owns the exit codes: 0 done, 1 the command failed, 2 wrong use or a start that could not be. A
command's module is loaded when it is called and not before, so that what only talks to a service
needs nothing of what serving takes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from chairlift import __version__
from chairlift.cluster.errors import StartupError

__all__ = ["main"]

COMMANDS = {
    "serve": ("deployments.serve", "start the whole service on this machine"),
    "chat": ("deployments.chat", "chat with a running service in the terminal"),
    "top": ("deployments.top", "watch a running service in the terminal"),
    "guard": ("deployments.guard", "see what watches over a running service, and act by hand"),
    "plan": ("deployments.plan", "say how many devices a model needs for a load"),
    "bench": ("evaluation.bench", "load a running service and measure it"),
    "evaluate": ("evaluation.evaluate", "run a study by its plan, and say whether its claim holds"),
    "monitoring": (
        "deployments.monitoring",
        "write a Grafana dashboard and alert rules for Prometheus",
    ),
    "key": ("deployments.key", "make an API key for a tenant"),
    "env": ("deployments.env", "print what Ray needs in the environment of a cluster's nodes"),
    "doctor": ("deployments.doctor", "say what this machine can run"),
    "ledger": ("deployments.ledger", "show what a ledger file holds"),
    "replay": ("deployments.replay", "decide everything in a ledger again, and compare"),
    "explain": ("deployments.explain", "tell the story of one request, from a ledger"),
}
"""Each command's module, below ``chairlift``, and its line in the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser(given).parse_args(given)
        return int(arguments.run(arguments))
    except StartupError as error:
        print(f"chairlift: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("chairlift."):
            raise
        package = error.name.partition(".")[0]
        print(
            f"chairlift: {_named(given)} needs {package}, which is not installed; run: "
            "pip install 'chairlift[serve]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Knows all commands, and the flags of the one that is called."""
    parser = argparse.ArgumentParser(
        prog="chairlift", description="A distributed server for language models."
    )
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == _named(given):
            loaded = importlib.import_module(f"chairlift.{module}")
            loaded.add_arguments(command)
            command.set_defaults(run=loaded.run)
    return parser


def _named(given: Sequence[str]) -> str | None:
    """The command that is called: no flag before it takes a value."""
    return next((word for word in given if not word.startswith("-")), None)


if __name__ == "__main__":
    sys.exit(main())
