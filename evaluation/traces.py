"""Recorded arrivals: reads four public formats into one.

Owns the formats; knows nothing of what is done with the arrivals.

    Azure      CSV   TIMESTAMP, ContextTokens, GeneratedTokens
    arena      CSV   arrival_s, client, prompt_tokens, output_tokens
    BurstGPT   CSV   Timestamp (s), Request tokens, Response tokens, …
    Mooncake   JSONL timestamp (ms), input_length, output_length, hash_ids

BurstGPT records failed requests with no response tokens; they are left out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chairlift.evaluation.lengths import Lengths

__all__ = ["Arrival", "read_trace", "scale_trace"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    Attributes:
        at_s: counts from the first one.
        client: who sent it; "" where the trace does not tell.
        blocks: names of the prompt's blocks of 512 tokens, of which equal ones have equal tokens.
    """

    at_s: float
    lengths: Lengths
    client: str = ""
    blocks: tuple[int, ...] = ()


def read_trace(path: Path) -> list[Arrival]:
    """Every request of the file, in order of time.

    Raises:
        ValueError: the file cannot be read, or its line N is of none of the formats.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the trace {path}: {error}") from None
    arrivals: list[Arrival] = []
    try:
        for arrival in _parse(text):
            arrivals.append(arrival)
    except (KeyError, TypeError, ValueError) as error:
        # The header of a CSV file is line 1.
        raise ValueError(f"{path}: request {len(arrivals) + 1}: {_reason(error)}") from None
    if not arrivals:
        raise ValueError(f"{path}: no requests in it")
    arrivals.sort(key=lambda arrival: arrival.at_s)
    start = arrivals[0].at_s
    return [replace(arrival, at_s=arrival.at_s - start) for arrival in arrivals]


def scale_trace(arrivals: list[Arrival], *, lengths: float, time: float) -> list[Arrival]:
    """Multiply lengths (to whole numbers from 1) and times of arrival by a factor each."""
    return [
        replace(
            arrival,
            at_s=arrival.at_s * time,
            lengths=Lengths(
                prompt=max(1, round(arrival.lengths.prompt * lengths)),
                output=max(1, round(arrival.lengths.output * lengths)),
            ),
        )
        for arrival in arrivals
    ]


def _parse(text: str) -> Iterator[Arrival]:
    lines = text.splitlines()
    if not lines:
        return iter(())
    if lines[0].startswith("{"):
        return (_mooncake(json.loads(line)) for line in lines if line.strip())
    reader = csv.DictReader(lines)
    columns = set(reader.fieldnames or ())
    row: Callable[[Mapping[str, str]], Arrival]
    if columns >= {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}:
        row = _azure
    elif columns >= {"arrival_s", "prompt_tokens", "output_tokens"}:
        row = _arena
    elif columns >= {"Timestamp", "Request tokens", "Response tokens"}:
        return (_burst_gpt(fields) for fields in reader if fields["Response tokens"] != "0")
    else:
        raise ValueError(f"unknown columns {', '.join(sorted(columns))}")
    return (row(fields) for fields in reader)


def _azure(row: Mapping[str, str]) -> Arrival:
    at = datetime.fromisoformat(row["TIMESTAMP"]).replace(tzinfo=UTC).timestamp()
    return Arrival(at, _lengths(row["ContextTokens"], row["GeneratedTokens"]))


def _arena(row: Mapping[str, str]) -> Arrival:
    lengths = _lengths(row["prompt_tokens"], row["output_tokens"])
    return Arrival(float(row["arrival_s"]), lengths, client=row.get("client") or "")


def _burst_gpt(row: Mapping[str, str]) -> Arrival:
    return Arrival(float(row["Timestamp"]), _lengths(row["Request tokens"], row["Response tokens"]))


def _mooncake(row: Mapping[str, Any]) -> Arrival:
    lengths = _lengths(row["input_length"], row["output_length"])
    return Arrival(row["timestamp"] / 1000, lengths, blocks=tuple(row.get("hash_ids", ())))


def _lengths(prompt: str | float, output: str | float) -> Lengths:
    return Lengths(prompt=max(1, int(prompt)), output=max(1, int(output)))


def _reason(error: Exception) -> str:
    return f"no field {error}" if isinstance(error, KeyError) else str(error)
