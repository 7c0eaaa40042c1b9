"""Chairlift beside other servers: ``python -m chairlift.evaluation.peers``.

Owns the flags and the order of things. Whoever runs it starts the servers; each gets the same loads
(``loads``), one server at a time, and the order is reversed every other round, so that a machine
that grows slower in between is unfair to none. The first target is compared with all the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import aiohttp
import uvloop
from rich.console import Console

from chairlift.cluster.config import client_headers
from chairlift.evaluation.completions import Target
from chairlift.evaluation.drill_client import load_session
from chairlift.evaluation.flags import count, positive
from chairlift.evaluation.load_run import Dialect, run_load
from chairlift.evaluation.loads import (
    LOADS,
    Load,
    capacity_load,
    closed_load,
    expand,
    open_load,
    open_name,
    warm_up_load,
)
from chairlift.evaluation.openai_stream import ServerFault, api_base, first_model, unusable
from chairlift.evaluation.peers_report import (
    Figures,
    Run,
    figures_of,
    figures_table,
    ratio_table,
    ratios,
)

__all__ = ["main"]

_FORM = "NAME=URL[,MODEL[,words]]"

_Play: TypeAlias = Callable[[Load], Awaitable[Figures]]
"""Runs a load on one server."""


@dataclass(frozen=True, slots=True)
class Named:
    """A server, as it is called in tables; ``model`` None: the first that it offers."""

    name: str
    base: str
    model: str | None
    dialect: Dialect


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; 1 when a request failed, 2 for wrong flags or a server that is none."""
    arguments = _parser().parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    try:
        loads = expand(arguments.load)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            comparison = _Comparison(
                arguments, Console(stderr=True, highlight=False, soft_wrap=True)
            )
            runs = runner.run(comparison.run(loads))
    except (ValueError, ConnectionError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    names = [target.name for target in arguments.target]
    found = ratios(runs, names)
    for load in loads:
        console.print(figures_table(runs, load, names))
        if any(ratio.load == load for ratio in found):
            console.print(ratio_table(found, load, names[0]))
    if arguments.json:
        fields = {
            "targets": [asdict(target) for target in arguments.target],
            "seed": arguments.seed,
            "capacity": comparison.capacity,
            "runs": [asdict(run) for run in runs],
            "ratios": [asdict(ratio) for ratio in found],
        }
        Path(arguments.json).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    return 1 if any(run.figures.failures for run in runs) else 0


class _Comparison:
    """Runs every load on every target, round by round.

    Attributes:
        capacity: requests per second that the first target served, by the trace of load d.
    """

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self.capacity: dict[str, float] = {}
        self._named: list[Named] = arguments.target
        self._rounds: int = arguments.rounds
        self._seed: int = arguments.seed
        self._timeout_s: float = arguments.timeout
        self._console = console

    async def run(self, loads: Sequence[str]) -> list[Run]:
        """Raises ConnectionError when a target does not serve."""
        async with load_session(client_headers()) as session:
            players = [await self._player(session, named) for named in self._named]
            for play in players:
                await play(warm_up_load(f"{self._seed}"))
            for trace, _ in filter(None, map(open_name, loads)):
                if trace not in self.capacity:
                    self.capacity[trace] = await self._measure_capacity(players[0], trace)
            return [
                run
                for name in loads
                for number in range(self._rounds)
                for run in await self._round(players, name, number)
            ]

    async def _player(self, session: aiohttp.ClientSession, named: Named) -> _Play:
        target = await _find(session, named)

        async def play(load: Load) -> Figures:
            run = await run_load(session, target, load, self._timeout_s, named.dialect)
            return figures_of(run)

        return play

    async def _round(self, players: Sequence[_Play], name: str, number: int) -> list[Run]:
        load = self._load(name, f"{self._seed} {number}")
        order = list(zip(self._named, players, strict=True))
        runs = []
        for named, play in order if number % 2 == 0 else reversed(order):
            figures = await play(load)
            self._console.print(
                f"load {name} round {number + 1} {named.name}: {figures.output_tokens_per_s:.1f}"
                f" output tokens/s, client {figures.client_cpu:.0%} of a core"
            )
            for kind, failed in figures.failures.items():
                self._console.print(f"  {failed} × {kind}: {figures.details[kind]}", markup=False)
            runs.append(Run(name, number, named.name, figures))
        return runs

    def _load(self, name: str, seed: str) -> Load:
        traced = open_name(name)
        if traced is None:
            return closed_load(name, seed)
        trace, share = traced
        return open_load(name, seed, share * self.capacity[trace])

    async def _measure_capacity(self, play: _Play, trace: str) -> float:
        load = capacity_load(trace, f"{self._seed}")
        figures = await play(load)
        if figures.failures:
            raise ConnectionError(f"no capacity to be had: {figures.details}")
        rate = len(load.work) / figures.seconds
        self._console.print(f"capacity, {trace}: {rate:.2f} requests/s")
        return rate


async def _find(session: aiohttp.ClientSession, named: Named) -> Target:
    try:
        return Target(named.base, named.model or await first_model(session, named.base))
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        raise ConnectionError(f"{named.name}: {unusable(named.base, error)}") from None


def _target(text: str) -> Named:
    name, equals, rest = text.partition("=")
    url, *more = rest.split(",")
    if not (name and equals) or len(more) > 2 or more[1:] not in ([], ["words"]):
        raise argparse.ArgumentTypeError(f"{text!r}: write {_FORM}")
    try:
        model = more[0] if more and more[0] else None
        return Named(name, api_base(url), model, "words" if more[1:] else "tokens")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.peers",
        description="The same loads on several running servers, in turn, and paired ratios.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--target",
        type=_target,
        action="append",
        required=True,
        metavar=_FORM,
        help="a server, once for each; the first is compared with the others; words: it takes"
        " prompts as text alone",
    )
    parser.add_argument(
        "--load", nargs="+", default=["a", "b", "c"], metavar="LOAD", help=", ".join((*LOADS, "d"))
    )
    parser.add_argument("--rounds", type=count, default=3, help="of every load on every server")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, lengths and times")
    parser.add_argument("--timeout", type=positive, default=900.0, help="of one request, seconds")
    parser.add_argument("--json", metavar="FILE", help="write every run and ratio as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
