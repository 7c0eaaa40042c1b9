"""Runs what runbooks say, as a person at a terminal would.

Owns the shell: the variables that runbooks name, ``chairlift`` on its path, and how long a step may
take. What the commands are is ``evaluation.runbooks``'.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chairlift.evaluation.runbooks import Command, script

__all__ = ["Followed", "RunbookShell"]

GRACE_S = 60.0
"""For all commands of a part together, besides what may be waited for."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of the commands of a part; ``output``: all that they printed."""

    ok: bool
    seconds: float
    output: str

    @property
    def last_words(self) -> str:
        """Where it went wrong."""
        return " / ".join(self.output.strip().splitlines()[-3:])


class RunbookShell:
    """Commands of one service's runbooks.

    Args:
        folder: of its own; gets a ``bin`` with ``chairlift``.
        values: of the variables that runbooks name.
    """

    def __init__(self, folder: Path, values: Mapping[str, str]) -> None:
        self._values = {"USER": "drill", **values}
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True, exist_ok=True)
        program = self._bin / "chairlift"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m chairlift.deployments.cli "$@"\n')
        program.chmod(0o700)

    async def follow(
        self, commands: Iterable[Command], deadline_s: float, more: Mapping[str, str] | None = None
    ) -> Followed:
        """Run them in one shell, up to the first that fails.

        Args:
            commands: of a part.
            deadline_s: for each that shows something, until it does.
            more: values besides those of the service.
        """
        commands = list(commands)
        values = self._values | dict(more or {})
        waits = sum(each.shows is not None for each in commands)
        variables = values | {"DEADLINE_S": f"{deadline_s:.0f}"}
        text = f"PATH={shlex.quote(str(self._bin))}:$PATH\n{script(commands, values)}"
        start = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *("env", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-eu", "-c", text),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(waits * deadline_s + GRACE_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            output, _ = await process.communicate()
        said = output.decode(errors="replace")
        return Followed(process.returncode == 0, time.monotonic() - start, said)
