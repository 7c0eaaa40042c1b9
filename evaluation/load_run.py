"""Plays a load against one OpenAI-style server; every request becomes a record.

Owns what is asked of such servers so that they all do the same work, and what counts as having done
it: greedy, past the end token, exactly as many tokens in and out as the load says. An answer of
another length is a failed one. What the figures mean is ``records``'s matter.

Most servers take prompts as token ids (``tokens``). ``transformers serve`` takes text alone, so it
gets as many short words (``words``), has a field of its own for lengths, and ends a stream without
the usual last line.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import aiohttp
import orjson

from chairlift.evaluation.completions import WORDS, CompletionClient, Target
from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.load import Ask, closed_loop, open_loop, started_clock
from chairlift.evaluation.loads import Load
from chairlift.evaluation.records import RequestRecord

__all__ = ["Dialect", "LoadRun", "checked", "completion_ask", "run_load"]

Dialect: TypeAlias = Literal["tokens", "words"]

_MAX_IN_FLIGHT = 4096


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What became of one load.

    Attributes:
        client_cpu: share of one core that this process took meanwhile.
    """

    load: Load
    records: tuple[RequestRecord, ...]
    client_cpu: float


async def run_load(
    session: aiohttp.ClientSession,
    target: Target,
    load: Load,
    timeout_s: float,
    dialect: Dialect = "tokens",
) -> LoadRun:
    """Send all of it and follow it to its end."""
    records: list[RequestRecord] = []
    # Made beforehand, so that the client has little to do meanwhile.
    asks = iter([completion_ask(target.model, work, dialect) for work in load.work])
    clock, cpu = started_clock(), time.process_time()
    client = CompletionClient(session, target, clock=clock, timeout_s=timeout_s)
    if load.in_flight is None:
        await open_loop(
            asks, client.send, records.append, clock=clock, max_in_flight=_MAX_IN_FLIGHT
        )
    else:
        await closed_loop(
            asks,
            client.send,
            records.append,
            clock=clock,
            concurrency=load.in_flight,
            until=math.inf,
        )
    share = (time.process_time() - cpu) / clock()
    return LoadRun(load, tuple(map(checked, records)), share)


def completion_ask(
    model: str, work: Work, dialect: Dialect = "tokens", seed: int | None = None
) -> Ask:
    """One request, greedy, with exact lengths; the seed matters to simulated models alone."""
    fields: dict[str, Any] = {
        "model": model,
        "prompt": work.prompt,
        "max_tokens": work.output,
        "temperature": 0,
        "stream": True,
    }
    if seed is not None:
        fields["seed"] = seed
    if dialect == "tokens":
        fields |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    else:
        generation = {"max_new_tokens": work.output, "do_sample": False, "eos_token_id": -1}
        fields["prompt"] = " ".join(WORDS[token % len(WORDS)] for token in work.prompt)
        fields["generation_config"] = orjson.dumps(generation).decode()
    return Ask(work.at_s, len(work.prompt), work.output, orjson.dumps(fields))


def checked(record: RequestRecord) -> RequestRecord:
    """A failed one, where other lengths came than were asked for."""
    if record.failure == "cut_stream" and record.output_tokens == record.asked_output:
        return replace(record, failure=None, detail="")
    if record.failure is not None:
        return record
    if record.tokens != record.asked_output:
        detail = f"{record.tokens} output tokens of {record.asked_output}"
    elif record.prompt_tokens not in (None, record.asked_prompt):
        detail = f"{record.prompt_tokens} prompt tokens of {record.asked_prompt}"
    else:
        return record
    return replace(record, failure="wrong_length", detail=detail)
