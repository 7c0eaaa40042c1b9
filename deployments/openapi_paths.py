"""Every operation of the HTTP API, for its description.

Owns the table: where it is, what it is for, what it takes, what it answers and which errors it may
end with. What is taken is named by the models that read it (``deployments.openai_schema``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from chairlift.cluster.errors import (
    BodyTimeout,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    ReplicaLost,
    RequestError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from chairlift.cluster.guard_state import Rung
from chairlift.deployments import openapi_models as answers
from chairlift.deployments.openai_schema import ChatBody, CompletionBody
from chairlift.deployments.request_terms import TIMEOUT_HEADER
from chairlift.deployments.token_desk import DetokenizeBody, TokenizeBody
from chairlift.deployments.token_door import DETOKENIZE, TOKENIZE

__all__ = ["OPERATIONS", "Errors", "Operation"]

Schema = Mapping[str, Any]
Errors = tuple[type[RequestError], ...]

_BODY: Errors = (InvalidRequest, BodyTimeout, PayloadTooLarge, UnsupportedMediaType)
_KEYED: Errors = (Unauthorized,)
_GENERATED: Errors = (
    *(*_KEYED, *_BODY, NotFound, RateLimited, Overloaded, ReplicaLost),
    *(Unavailable, DeadlineExceeded),
)
_BY_HAND: Errors = (*_BODY, Unauthorized, Forbidden, NotFound, Unavailable)

_NAME: Schema = {"type": "string", "maxLength": 64}
_ORDER: Schema = {
    "type": "object",
    "properties": {"by": {**_NAME, "description": "Who gives the order, where no key tells."}},
    "additionalProperties": False,
}
_SET: Schema = {
    **_ORDER,
    "properties": {
        **_ORDER["properties"],
        "rung": {
            "type": ["string", "integer", "null"],
            "description": "Its number, or " + ", ".join(rung.name.lower() for rung in Rung),
        },
        "set": {"type": ["object", "null"], "description": "Overrides of what the rung brings."},
    },
}
_TERMS = (
    {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "Seconds to the first token at most.",
        "schema": {"type": "string", "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)$"},
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Comes back with the response; else one is drawn.",
        "schema": {"type": "string"},
    },
    {
        "name": "traceparent",
        "in": "header",
        "description": "W3C Trace Context.",
        "schema": {"type": "string"},
    },
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        answer: of success: a model, a schema, or a media type of what is no JSON.
        also: an answer of the same form that tells of trouble: its status.
        takes: the body.
        events: the model of each event, where the answer may be streamed.
        errors: besides InternalError.
        keyed: "key" where tenants' keys are asked for, "operator" where operators' are.
    """

    method: str
    path: str
    summary: str
    tag: str
    answer: type[BaseModel] | Schema | str
    also: int | None = None
    takes: type[BaseModel] | Schema | None = None
    events: type[BaseModel] | None = None
    parameters: tuple[Schema, ...] = ()
    errors: Errors = ()
    keyed: str = ""


_OBJECT: Schema = {"type": "object"}
_HTML, _TEXT, _BYTES = "text/html", "text/plain", "application/octet-stream"
_PROMETHEUS = _TEXT

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a chat",
        "Generation",
        answers.ChatCompletion,
        takes=ChatBody,
        events=answers.ChatChunk,
        parameters=_TERMS,
        errors=_GENERATED,
        keyed="key",
    ),
    Operation(
        "post",
        "/v1/completions",
        "Complete a text",
        "Generation",
        answers.Completion,
        takes=CompletionBody,
        events=answers.CompletionChunk,
        parameters=_TERMS,
        errors=_GENERATED,
        keyed="key",
    ),
    Operation(
        "get",
        "/v1/models",
        "List the models",
        "Models",
        answers.Models,
        errors=_KEYED,
        keyed="key",
    ),
    Operation(
        "get",
        "/v1/models/{model}",
        "Find a model by its name, which may have slashes",
        "Models",
        answers.Model,
        parameters=(
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}},
        ),
        errors=(*_KEYED, NotFound),
        keyed="key",
    ),
    Operation(
        "post",
        TOKENIZE,
        "Text or messages to tokens",
        "Tokens",
        answers.Tokens,
        takes=TokenizeBody,
        errors=(*_KEYED, *_BODY, NotFound),
        keyed="key",
    ),
    Operation(
        "post",
        DETOKENIZE,
        "Tokens to text",
        "Tokens",
        answers.Text,
        takes=DetokenizeBody,
        errors=(*_KEYED, *_BODY, NotFound),
        keyed="key",
    ),
    Operation("get", "/", "What is here", "Service", answers.Index),
    Operation("get", "/health", "Whether a replica is live", "Service", answers.Health, also=503),
    Operation("get", "/-/healthz", "Whether this router lives", "Service", _TEXT),
    Operation("get", "/openapi.json", "This description", "Service", _OBJECT),
    Operation("get", "/docs", "This description, for people", "Service", _HTML),
    Operation("get", "/metrics", "This router, for Prometheus", "Figures", _PROMETHEUS),
    Operation(
        "get",
        "/metrics/cluster",
        "The cluster, for Prometheus",
        "Figures",
        _PROMETHEUS,
        errors=(Unavailable,),
    ),
    Operation("get", "/dashboard", "The cluster, for people", "Figures", _HTML),
    Operation(
        "get",
        "/dashboard/figures",
        "The cluster, as JSON",
        "Figures",
        _OBJECT,
        errors=(Unavailable,),
    ),
    Operation(
        "get",
        "/dashboard/riders",
        "Who sat where at one replica",
        "Figures",
        _OBJECT,
        parameters=(
            {"name": "replica", "in": "query", "required": True, "schema": {"type": "string"}},
        ),
        errors=(InvalidRequest, NotFound, Unavailable),
    ),
    Operation(
        "get",
        "/replicas/{replica}/ledger",
        "What a replica's scheduler has decided",
        "By hand",
        _BYTES,
        parameters=(
            {"name": "replica", "in": "path", "required": True, "schema": {"type": "string"}},
        ),
        errors=(Unauthorized, Forbidden, NotFound, Unavailable),
        keyed="operator",
    ),
    Operation("get", "/guard", "How the Guard stands", "By hand", _OBJECT, errors=(Unavailable,)),
    *(
        Operation(
            "post",
            f"/guard/{action}",
            summary,
            "By hand",
            _OBJECT,
            takes=_SET if action == "set" else _ORDER,
            errors=_BY_HAND,
            keyed="operator",
        )
        for action, summary in (
            ("hold", "Keep the Guard from moving"),
            ("release", "Let the Guard move again"),
            ("set", "Put a rung in force"),
            ("approve", "Let the Guard take the rung that waits for a word"),
        )
    ),
)
