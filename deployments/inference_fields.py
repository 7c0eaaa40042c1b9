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
from chairlift.deployments.json_body import read_object
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
_CHAT = frozenset(pb.Chat.DESCRIPTOR.fields_by_name)
_MODES = {
    pb.TOOL_MODE_UNSPECIFIED: None,
    pb.TOOL_MODE_NONE: "none",
    pb.TOOL_MODE_AUTO: "auto",
    pb.TOOL_MODE_REQUIRED: "required",
}
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
            chat = _chat_fields(request.chat)
            return fields | {name: chat[name] for name in ("messages", "tools") if name in chat}
        case _:
            raise _no_input("text and chat")


def detokenize_fields(request: pb.DetokenizeRequest) -> dict[str, Any]:
    """The same request as a body of ``/detokenize``."""
    return _set(request, "model") | {"tokens": list(request.token_ids)}


def detokenize_path(param: str) -> str:
    """Name in a body → path in a DetokenizeRequest."""
    return re.sub("^tokens", "token_ids", param)


def _chat_fields(chat: pb.Chat) -> dict[str, Any]:
    """A conversation as a part of a body; raises InvalidRequest for a schema that is no JSON."""
    fields = _set(chat, "parallel_tool_calls")
    fields["messages"] = [_message(message) for message in chat.messages]
    if chat.tools:
        fields["tools"] = [_tool(tool, index) for index, tool in enumerate(chat.tools)]
    if chat.HasField("tool_choice"):
        fields["tool_choice"] = _tool_choice(chat.tool_choice)
    if chat.HasField("response_format"):
        fields["response_format"] = _response_format(chat.response_format)
    return fields


def _message(message: pb.ChatMessage) -> dict[str, Any]:
    fields = _set(message, "content", "tool_call_id", "name", "reasoning_content")
    fields["role"] = message.role
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    return fields


def _call(call: pb.ToolCall) -> dict[str, Any]:
    function = call.function
    return {"id": call.id, "function": {"name": function.name, "arguments": function.arguments}}


def _tool(tool: pb.Tool, index: int) -> dict[str, Any]:
    function = _set(tool.function, "description", "strict") | {"name": tool.function.name}
    if tool.function.HasField("parameters"):
        param = f"tools[{index}].function.parameters"
        function["parameters"] = _schema(tool.function.parameters, param)
    return {"type": "function", "function": function}


def _tool_choice(choice: pb.ToolChoice) -> object:
    if choice.WhichOneof("choice") == "function":
        return {"type": "function", "function": {"name": choice.function.name}}
    if choice.mode not in _MODES:
        raise InvalidRequest("tool_choice.mode: there is no such mode", param="tool_choice.mode")
    return _MODES[choice.mode]


def _response_format(asked: pb.ResponseFormat) -> dict[str, Any]:
    match asked.WhichOneof("form"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            form = asked.json_schema
            fields = _set(form, "description", "strict") | {"name": form.name}
            fields["schema"] = _schema(form.schema, "response_format.json_schema.schema")
            return {"type": "json_schema", "json_schema": fields}
        case _:
            return {"type": "text"}


def _schema(text: str, param: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return read_object(text.encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"{param}: {error.message}", param=param, code=error.code) from None


def field_path(request: pb.GenerateRequest | pb.TokenizeRequest) -> partial[str]:
    """Name in a body → path in ``request``."""
    return partial(_path, _INPUTS.get(request.WhichOneof("input") or "", "input"))


def _path(input_path: str, param: str) -> str:
    name = re.match(r"\w*", param)[0]  # type: ignore[index]  # matches everywhere
    rest = param[len(name) :]
    if name in ("prompt", "messages"):
        return input_path + rest
    if name in _CHAT:
        return f"chat.{param}"
    if name == "top_logprobs":
        name = "logprobs"
    return f"sampling.{name}{rest}" if name in _SAMPLING else param


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
