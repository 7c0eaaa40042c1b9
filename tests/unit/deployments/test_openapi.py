"""The API's description says what holds: of what is taken, and of what is answered."""

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest

from chairlift.cluster.errors import Overloaded
from chairlift.deployments.openapi import describe
from support.asgi_client import Reply, call
from support.fake_router import FakeRouter
from support.http_app import CHAT, MODEL, USER, http_app
from support.scored import ScriptedRouter, says

DOCUMENT = describe(MODEL)
SCHEMAS = DOCUMENT["components"]["schemas"]
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def fits(name: str, value: object) -> bool:
    return validator({"$ref": f"#/components/schemas/{name}"}).is_valid(value)


def check(name: str, value: object) -> None:
    validator({"$ref": f"#/components/schemas/{name}"}).validate(value)


def ask(path: str, body: object = None, router: Any = None) -> Reply:
    method = "GET" if body is None else "POST"
    return asyncio.run(call(http_app(router), method, path, body))


def test_the_document_is_served_and_every_reference_in_it_leads_somewhere():
    document = ask("/openapi.json").json()
    assert document == json.loads(json.dumps(DOCUMENT))
    assert document["openapi"] == "3.1.0"
    for reference in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document)):
        assert reference in SCHEMAS
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))


def test_it_has_every_endpoint_and_no_other():
    described = {
        (path, method.upper())
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
        if "{" not in path
    }
    app = http_app()
    assert described == {(path, method) for path, (method, _) in app._endpoints.items()}
    for path in ("/v1/models/x", "/replicas/x/ledger"):
        assert app._find(path)[0] == "GET"


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        (CHATS, "ChatCompletion", CHAT | {"n": 2}),
        (CHATS, "ChatCompletion", CHAT | {"logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, "Completion", {"prompt": ["a", "b"]}),
        (COMPLETIONS, "Completion", {"prompt": "hi", "logprobs": 2, "echo": True}),
        ("/tokenize", "Tokens", {"prompt": "hi"}),
        ("/tokenize", "Tokens", CHAT | {"return_token_strs": True}),
        ("/detokenize", "Text", {"tokens": [104, 105]}),
        ("/v1/models", "Models", None),
        (f"/v1/models/{MODEL}", "Model", None),
        ("/health", "Health", None),
        ("/", "Index", None),
        ("/v1/models/other", "Error", None),
        (CHATS, "Error", {"messages": []}),
    ],
)
def test_answers_are_as_described(path, name, fields):
    router = ScriptedRouter(says(b"he", b"y")) if name.endswith("Completion") else FakeRouter()
    check(name, ask(path, fields, router).json())


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        (CHATS, "ChatChunk", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 1}),
        (COMPLETIONS, "CompletionChunk", {"prompt": "hi", "logprobs": 1, "echo": True}),
    ],
)
def test_events_are_as_described(path, name, fields):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = ask(path, fields | options, ScriptedRouter(says(b"he", b"y"))).events()
    assert last == "[DONE]"
    assert len(events) > 2
    for event in events:
        check(name, event)
    content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
    assert content["text/event-stream"]["x-event-schema"]["$ref"].endswith(f"/{name}")


def test_errors_are_described_with_their_status():
    router = FakeRouter()

    def refuse(_request: object) -> None:
        raise Overloaded("full", retry_after_s=1)

    router.admission = refuse
    reply = ask(CHATS, CHAT, router)
    described = DOCUMENT["paths"][CHATS]["post"]["responses"][str(reply.status)]
    assert {name.lower() for name in described["headers"]} <= reply.headers.keys()
    assert set(DOCUMENT["paths"][CHATS]["post"]["responses"]) == set(
        "200 400 401 404 408 413 415 429 500 502 503 504".split()
    )


GOOD = [
    {},
    {"model": MODEL, "n": 2, "stop": ["x"], "seed": 2**64 - 1, "temperature": None},
    {"logit_bias": {"65": -100}, "priority": 0, "user": "me", "metadata": {"a": [1]}},
    {"best_of": None, "function_call": "none", "suffix": "", "modalities": ["text"]},
    {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5.0},
]
BAD = [
    {"model": "other"},
    {"n": 0},
    {"n": "2"},
    {"temperature": 2.5},
    {"top_p": 0},
    {"seed": 2**64},
    {"stop": ["x"] * 65},
    {"stop": ""},
    {"logit_bias": {"AI": 1}},
    {"logit_bias": {"1": 101}},
    {"priority": "urgent"},
    {"deadline_ms": 0},
    {"unknown": 1},
    {"audio": {"voice": "x"}},
    {"suffix": "."},
    {"stream_options": 5},
]


@pytest.mark.parametrize("fields", [*GOOD, *BAD], ids=str)
@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
def test_what_is_taken_fits_the_description_and_what_does_not_is_refused(path, fields):
    name, base = {CHATS: ("ChatBody", CHAT), COMPLETIONS: ("CompletionBody", {"prompt": "hi"})}[
        path
    ]
    taken = ask(path, base | fields).status == 200
    assert taken == (fields in GOOD) == fits(name, base | fields)


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"prompt": "hi"}, True),
        ({"prompt": ""}, True),
        ({"messages": [USER]}, True),
        ({"prompt": None, "messages": [USER], "add_generation_prompt": False}, True),
        ({"prompt": "hi", "messages": [USER]}, False),
        ({}, False),
        ({"prompt": 5}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "martian", "content": ""}]}, False),
        ({"prompt": "hi", "unknown": 1}, False),
    ],
    ids=str,
)
def test_the_same_of_what_is_to_be_tokenised(fields, good):
    assert (ask("/tokenize", fields).status == 200) == good == fits("TokenizeBody", fields)
