"""From the server's JSON to results.

Owns which field becomes what, and that an answer of another form is ``BadAnswer`` and nothing
else. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chairlift.client.errors import BadAnswer
from chairlift.client.results import (
    Answer,
    Choice,
    Delta,
    Health,
    Model,
    ReplicaHealth,
    Tokenized,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)

__all__ = [
    "read",
    "read_answer",
    "read_deltas",
    "read_health",
    "read_models",
    "read_prompt",
    "read_seeds",
    "read_tokenized",
    "read_usage",
]

T = TypeVar("T")
Json = Mapping[str, Any]


def read(reader: Callable[[Json], T], body: bytes | str, request_id: str) -> T:
    """What ``reader`` makes of a JSON object; raises BadAnswer for anything else."""
    try:
        return reader(json.loads(body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shown = body[:200]
        raise BadAnswer(
            f"no answer of this API: {shown!r}; is the address a Chairlift's?",
            request_id=request_id,
        ) from None


def read_answer(body: Json, request_id: str) -> Answer:
    return Answer(
        id=body["id"],
        model=body["model"],
        choices=tuple(map(_choice, body["choices"])),
        usage=read_usage(body["usage"]),
        seeds=read_seeds(body),
        request_id=request_id,
    )


def read_deltas(event: Json) -> list[Delta]:
    """What one event of a stream adds; a chat's opening adds nothing."""
    deltas = []
    for choice in event["choices"]:
        part = choice.get("delta") or {}
        delta = Delta(
            choice=choice.get("index", 0),
            text=part.get("content") or choice.get("text") or "",
            finish_reason=choice.get("finish_reason"),
            tool_calls=tuple(map(_tool_call_delta, part.get("tool_calls") or ())),
            logprobs=_logprobs(choice.get("logprobs")),
        )
        if delta != Delta(delta.choice):
            deltas.append(delta)
    return deltas


def read_usage(usage: Json) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens") or 0
    )


def read_seeds(body: Json) -> tuple[int, ...]:
    """None of them from a server that does not tell."""
    return tuple((body.get("chairlift") or {}).get("seeds") or ())


def read_models(body: Json) -> tuple[Model, ...]:
    return tuple(Model(card["id"], card.get("max_model_len")) for card in body["data"])


def read_tokenized(body: Json) -> Tokenized:
    return Tokenized(tuple(body["tokens"]), body.get("max_model_len"))


def read_prompt(body: Json) -> str:
    return str(body["prompt"])


def read_health(body: Json) -> Health:
    replicas = tuple(
        ReplicaHealth(
            id=each["id"],
            live=each["live"],
            running=each["running"],
            waiting=each["waiting"],
            report_age_s=each["report_age_s"],
        )
        for each in body["replicas"]
    )
    return Health(body["status"] == "ok", body["model"], replicas)


def _choice(choice: Json) -> Choice:
    message = choice.get("message") or {}
    return Choice(
        index=choice["index"],
        text=message.get("content") or choice.get("text") or "",
        finish_reason=choice["finish_reason"],
        tool_calls=tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ),
        logprobs=_logprobs(choice.get("logprobs")),
    )


def _tool_call_delta(call: Json) -> ToolCallDelta:
    function = call.get("function") or {}
    return ToolCallDelta(
        call["index"], call.get("id"), function.get("name"), function.get("arguments") or ""
    )


def _logprobs(value: Json | None) -> tuple[TokenLogprob, ...] | None:
    """Both forms: a chat's entries, and a completion's columns."""
    if value is None:
        return None
    if "content" in value:
        return tuple(map(_chat_logprob, value["content"] or ()))
    tops = value.get("top_logprobs") or [None] * len(value["tokens"])
    rows = zip(value["tokens"], value["token_logprobs"], tops, strict=True)
    return tuple(
        TokenLogprob(token, logprob, tuple((top or {}).items())) for token, logprob, top in rows
    )


def _chat_logprob(entry: Json) -> TokenLogprob:
    raw = entry.get("bytes")
    return TokenLogprob(
        entry["token"],
        entry["logprob"],
        tuple((top["token"], top["logprob"]) for top in entry.get("top_logprobs") or ()),
        None if raw is None else bytes(raw),
    )
