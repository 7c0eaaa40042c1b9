"""From the messages of ``chairlift.v1`` to the fields of HTTP's bodies, and their names back.

Owns which field is which. What the fields mean and when they are wrong is decided where HTTP's
are (``openai_schema``, ``openai_convert``), so a wrong one is named as it is called there; the
name is then led back to where the client wrote it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_response import Api
from chairlift.deployments.proto import inference_pb2 as pb

__all__ = [
    "detokenize_fields",
    "detokenize_path",
    "field_path",
    "generation_api",
    "generation_fields",
    "tokenize_fields",
]

_SAMPLING = frozenset(pb.Sampling.DESCRIPTOR.fields_by_name)
_LISTS = ("allowed_token_ids", "stop", "stop_token_ids")
_INPUTS = {"text": "text", "tokens": "tokens.ids", "chat": "chat.messages"}
_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: None,
    pb.PRIORITY_INTERACTIVE: "interactive",
    pb.PRIORITY_STANDARD: "standard",
    pb.PRIORITY_BATCH: "batch",
}


def generation_api(request: pb.GenerateRequest) -> Api:
    """The endpoint of HTTP that takes the same; raises InvalidRequest without an input."""
    match request.WhichOneof("input"):
        case None:
            raise _no_input("text, tokens and chat")
        case "chat":
            return Api.CHAT
        case _:
            return Api.COMPLETION


def generation_fields(request: pb.GenerateRequest) -> dict[str, Any]:
    """The same request as a body of its endpoint; what is not set is left out."""
    fields = _set(request, "model", "n", "deadline_ms", "cache_salt")
    if request.priority not in _PRIORITIES:
        raise InvalidRequest("priority: there is no such class", param="priority")
    fields["priority"] = _PRIORITIES[request.priority]
    fields |= _sampling_fields(request.sampling)
    if request.echo:
        fields["echo"] = True
    match request.WhichOneof("input"):
        case "chat":
            fields |= _chat_fields(request.chat)
            if (number := fields.get("logprobs")) is not None:
                fields |= {"logprobs": True, "top_logprobs": number}
        case "tokens":
            fields["prompt"] = list(request.tokens.ids)
        case _:
            fields["prompt"] = request.text
    return fields


def tokenize_fields(request: pb.TokenizeRequest) -> dict[str, Any]:
    """The same request as a body of ``/tokenize``; raises InvalidRequest without an input."""
    fields = _set(request, "model", "add_special_tokens")
    match request.WhichOneof("input"):
        case "text":
            return fields | {"prompt": request.text}
        case "chat":
            return fields | _chat_fields(request.chat)
        case _:
            raise _no_input("text and chat")


def detokenize_fields(request: pb.DetokenizeRequest) -> dict[str, Any]:
    """The same request as a body of ``/detokenize``."""
    return _set(request, "model") | {"tokens": list(request.token_ids)}


def detokenize_path(param: str) -> str:
    """Name in a body → path in a DetokenizeRequest."""
    return re.sub("^tokens", "token_ids", param)


def field_path(request: pb.GenerateRequest | pb.TokenizeRequest) -> partial[str]:
    """Name in a body → path in ``request``."""
    return partial(_path, _INPUTS.get(request.WhichOneof("input") or "", "input"))


def _path(input_path: str, param: str) -> str:
    name = re.match(r"\w*", param)[0]  # type: ignore[index]  # matches everywhere
    rest = param[len(name) :]
    if name in ("prompt", "messages"):
        return input_path + rest
    if name == "top_logprobs":
        name = "logprobs"
    return f"sampling.{name}{rest}" if name in _SAMPLING else param


def _chat_fields(chat: pb.Chat) -> dict[str, Any]:
    return {
        "messages": [_set(message, "content") | {"role": message.role} for message in chat.messages]
    }


def _no_input(choices: str) -> InvalidRequest:
    return InvalidRequest(
        f"input: one of {choices} must be set", param="input", code="missing_required_parameter"
    )


def _sampling_fields(sampling: pb.Sampling) -> dict[str, Any]:
    scalars = _SAMPLING.difference(_LISTS, ("logit_bias", "ignore_eos"))
    fields = _set(sampling, *scalars)
    fields["ignore_eos"] = sampling.ignore_eos
    for name in _LISTS:
        if values := getattr(sampling, name):
            fields[name] = list(values)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return fields


def _set(message: Any, *names: str) -> dict[str, Any]:
    """The optional fields that are set."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}
