"""The description of the HTTP API, by OpenAPI 3.1, made from what reads the requests.

Owns how models and tables become that document; it is made once. The bodies' schemas come from the
models that validate them, so they cannot say anything else than what holds.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from chairlift.cluster.errors import InternalError, RequestError
from chairlift.deployments.openai_messages import Part
from chairlift.deployments.openai_schema import IGNORED, UNSUPPORTED
from chairlift.deployments.openapi_models import Error
from chairlift.deployments.openapi_paths import OPERATIONS, Errors, Operation

__all__ = ["describe"]

_REFERENCE = "#/components/schemas/{model}"
_RETRY = {"Retry-After": {"description": "In seconds.", "schema": {"type": "string"}}}
_STREAM = (
    "Server-sent events, if `stream` is true. The data of each is JSON, but for the last of a "
    "stream that is complete: `[DONE]`. A stream that breaks off ends with an error instead."
)
_KEYS = {
    "key": "A tenant's API key; needed unless the service has an anonymous tenant.",
    "operator": "An operator's key; without operators, whoever is on the service's machine.",
}


def describe(model_name: str) -> dict[str, Any]:
    """The document of a service with one model."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chairlift",
            "version": version("chairlift"),
            "description": "Language models for many users at once, by OpenAI's HTTP API.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(model_name),
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": description}
                for name, description in _KEYS.items()
            },
        },
    }


def _schemas(model_name: str) -> dict[str, Any]:
    models: list[type[BaseModel]] = [Error]
    for operation in OPERATIONS:
        for each in (operation.answer, operation.takes, operation.events):
            if isinstance(each, type) and each not in models:
                models.append(each)
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REFERENCE
    )
    schemas: dict[str, Any] = dict(sorted(definitions["$defs"].items()))
    for model in models:
        if issubclass(model, Part):
            _complete(schemas[model.__name__])
            schemas[model.__name__]["properties"]["model"] = {"enum": [model_name, None]}
    return schemas


def _complete(schema: dict[str, Any]) -> None:
    """What holds for every field of a body, and those that are taken although it has them not."""
    fields = schema["properties"]
    for name, field in fields.items():
        if name not in schema.get("required", ()):
            fields[name] = _or_null(field)
    for name, neutral in UNSUPPORTED.items():
        if name not in fields:
            fields[name] = {
                "enum": [*neutral, None],
                "description": "Not offered: only what asks for nothing is taken.",
            }
    for name in sorted(IGNORED - set(fields)):
        fields[name] = {"description": "Ignored."}
    schema["additionalProperties"] = False


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """JSON's null is as if the field were not there."""
    names = ("title", "description", "default")
    outer: dict[str, Any] = {name: field[name] for name in names if name in field}
    inner = {name: value for name, value in field.items() if name not in outer}
    if {"type": "null"} in inner.get("anyOf", ()) or None in inner.get("enum", ()):
        return field
    return {**outer, "anyOf": [inner, {"type": "null"}]}


def _operation(operation: Operation) -> dict[str, Any]:
    words = operation.path.replace("{", "").replace("}", "").strip("/").replace("/", "_") or "index"
    described: dict[str, Any] = {
        "operationId": f"{operation.method}_{words}".replace(".", "_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(operation.parameters),
        "responses": _responses(operation),
    }
    if operation.takes is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(operation.takes)}},
        }
    if operation.keyed:
        described["security"] = [{operation.keyed: []}, {}]
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    success = {"description": "Done.", "content": _content(operation)}
    responses = {"200": success}
    if operation.also is not None:
        responses[str(operation.also)] = {**success, "description": "As well, but it says no."}
    by_status: dict[str, list[type[RequestError]]] = {}
    errors: Errors = (*operation.errors, InternalError)
    for error in errors:
        by_status.setdefault(str(error.http_status), []).append(error)
    for status, alike in sorted(by_status.items()):
        responses[status] = {
            "description": " ".join((error.__doc__ or "").splitlines()[0] for error in alike),
            "content": {"application/json": {"schema": _schema(Error)}},
            **({"headers": _RETRY} if status in ("429", "503") else {}),
        }
    return responses


def _content(operation: Operation) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        return {operation.answer: {"schema": {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": _schema(operation.answer)}}
    if operation.events is not None:
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": _STREAM},
            "x-event-schema": _schema(operation.events),
        }
    return content


def _schema(model: type[BaseModel] | Any) -> dict[str, Any]:
    if isinstance(model, type):
        return {"$ref": _REFERENCE.format(model=model.__name__)}
    return dict(model)
