"""A mix of clients as ServeGen describes them: ``python -m chairlift.evaluation.servegen FOLDER``.

Owns the form and the drawing of requests; knows nothing of what is done with them. ServeGen keeps
two files for each client, ``chunk-ID-trace.csv`` and ``chunk-ID-dataset.json``; this command packs
those of a folder into the one file that a plan can name, and prints it:

    {"clients": {ID: {"trace": [[WINDOW, RATE, CV, "Gamma" | "Weibull" | "", SHAPE, SCALE], …],
                      "dataset": {WINDOW: {"input_tokens": {LENGTH: SHARE, …},
                                           "output_tokens": {LENGTH: SHARE, …}}}}}}

A window is named by the second at which it begins and lasts until the next. Without a pattern
nothing comes in it. Gaps are drawn from the pattern and brought to the mean that the rate says, as
ServeGen's own generator does; as there, one quantile gives both lengths of a request.
"""

from __future__ import annotations

import argparse
import ast
import csv
import heapq
import json
import math
import random
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from chairlift.evaluation.lengths import Lengths
from chairlift.evaluation.traces import Arrival

__all__ = ["Client", "Window", "draw_arrivals", "main", "pack", "read_mix"]

_WINDOW_S = 600.0
"""How long the last window lasts, if there is no other to tell."""


@dataclass(frozen=True, slots=True)
class _Share:
    """Lengths by their cumulative share."""

    lengths: tuple[int, ...]
    up_to: tuple[float, ...]

    def at(self, quantile: float) -> int:
        index = bisect_right(self.up_to, quantile * self.up_to[-1])
        return max(1, self.lengths[min(index, len(self.lengths) - 1)])


@dataclass(frozen=True, slots=True)
class Window:
    """What a client does from ``begin_s`` to ``end_s``; gaps are of shape ``shape``."""

    begin_s: float
    end_s: float
    rate: float
    pattern: str
    shape: float
    prompt: _Share
    output: _Share

    def gap_s(self, dice: random.Random) -> float:
        if self.pattern == "Gamma":
            return dice.gammavariate(self.shape, 1 / (self.shape * self.rate))
        mean = math.gamma(1 + 1 / self.shape)
        return dice.weibullvariate(1 / (mean * self.rate), self.shape)


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends."""

    name: str
    windows: tuple[Window, ...]


def read_mix(text: str) -> tuple[Client, ...]:
    """All clients, their times counted from the first window; ValueError says what is wrong."""
    clients = json.loads(text).get("clients")
    if not isinstance(clients, dict) or not clients:
        raise ValueError("no clients in it")
    begins = sorted({float(row[0]) for each in clients.values() for row in each["trace"]})
    ends = _ends(begins)
    found = []
    for name, each in clients.items():
        try:
            windows = tuple(_windows(each, begins, ends))
        except (KeyError, TypeError, ValueError, SyntaxError, IndexError) as error:
            raise ValueError(f"client {name}: {type(error).__name__}: {error}") from None
        found.append(Client(str(name), windows))
    return tuple(found)


def pack(folder: Path, begin: float = 0.0, end: float = math.inf) -> dict[str, Any]:
    """ServeGen's files of a folder as one mix, with the windows that begin in ``[begin, end)``.

    Raises:
        ValueError: a file is missing or is none of ServeGen's.
    """
    clients = {}
    for file in sorted(folder.glob("chunk-*-trace.csv")):
        name = file.name.removeprefix("chunk-").removesuffix("-trace.csv")
        try:
            with file.open(newline="", encoding="utf-8") as lines:
                rows = [_row(row) for row in csv.reader(lines) if row]
            dataset = json.loads(file.with_name(f"chunk-{name}-dataset.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: {error}") from None
        windows = [row for row in rows if begin <= row[0] < end]
        if any(row[3] for row in windows):
            clients[name] = {"trace": windows, "dataset": dataset}
    if not clients:
        raise ValueError(f"{folder}: no client sends anything from {begin:g} to {end:g}")
    return {"clients": clients}


def draw_arrivals(mix: Sequence[Client], seed: str, begin_s: float = 0.0) -> Iterator[Arrival]:
    """Requests of all clients in order of time, which counts from ``begin_s``."""
    merged = heapq.merge(*(_of_client(each, seed) for each in mix), key=lambda each: each.at_s)
    for each in merged:
        if each.at_s >= begin_s:
            yield Arrival(each.at_s - begin_s, each.lengths, each.client)


def _of_client(client: Client, seed: str) -> Iterator[Arrival]:
    dice = random.Random(f"{seed} {client.name}")
    for window in client.windows:
        at_s = window.begin_s + window.gap_s(dice)
        while at_s < window.end_s:
            quantile = dice.random()
            lengths = Lengths(window.prompt.at(quantile), window.output.at(quantile))
            yield Arrival(at_s, lengths, client.name)
            at_s += window.gap_s(dice)


def _row(fields: Sequence[str]) -> list[Any]:
    begin, rate, cv, pattern, shape, scale = fields
    return [float(begin), float(rate), float(cv), pattern, float(shape), float(scale)]


def _ends(begins: Sequence[float]) -> dict[float, float]:
    ends = dict(pairwise(begins))
    last = begins[-1] - begins[-2] if len(begins) > 1 else _WINDOW_S
    return ends | {begins[-1]: begins[-1] + last}


def _windows(
    client: Mapping[str, Any], begins: Sequence[float], ends: Mapping[float, float]
) -> Iterator[Window]:
    lengths = {float(begin): fields for begin, fields in client["dataset"].items() if fields}
    known = sorted(lengths)
    for begin, rate, _cv, pattern, shape, _scale in sorted(client["trace"], key=lambda row: row[0]):
        at = bisect_right(known, float(begin)) - 1
        if not pattern or float(rate) <= 0 or at < 0:
            continue
        if pattern not in ("Gamma", "Weibull") or float(shape) <= 0:
            raise ValueError(f"window {begin}: a pattern {pattern!r} of shape {shape}")
        fields = lengths[known[at]]
        yield Window(
            begin_s=float(begin) - begins[0],
            end_s=ends[float(begin)] - begins[0],
            rate=float(rate),
            pattern=pattern,
            shape=float(shape),
            prompt=_share(fields["input_tokens"]),
            output=_share(fields["output_tokens"]),
        )


def _share(shares: Mapping[Any, float] | str) -> _Share:
    """Of lengths; ServeGen's files have the mapping as a text of Python."""
    read = ast.literal_eval(shares) if isinstance(shares, str) else shares
    ordered = sorted((int(length), float(share)) for length, share in read.items())
    up_to = tuple(accumulate(share for _, share in ordered))
    if not up_to or up_to[-1] <= 0:
        raise ValueError("no lengths in a window")
    return _Share(tuple(length for length, _ in ordered), up_to)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the mix; 2 where the folder has none."""
    parser = argparse.ArgumentParser(prog="servegen", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="with ServeGen's files of one model")
    parser.add_argument("--begin", type=float, default=0.0, help="second of the first window")
    parser.add_argument("--end", type=float, default=math.inf, help="before which the last begins")
    arguments = parser.parse_args(argv)
    try:
        print(json.dumps(pack(arguments.folder, arguments.begin, arguments.end)))
    except ValueError as error:
        print(f"servegen: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
