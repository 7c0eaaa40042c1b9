"""What answers look like, for the API's description.

Owns these types. Answers are written by hand, for speed (``deployments.openai_response``,
``deployments.sse``); tests hold what is written against what is described here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from chairlift.deployments.openai_messages import ToolCall

__all__ = [
    "ChatChunk",
    "ChatCompletion",
    "Completion",
    "CompletionChunk",
    "Error",
    "Health",
    "Index",
    "Model",
    "Models",
    "Text",
    "Tokens",
]

Finish = Literal["stop", "length", "tool_calls"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorDetails(_Answer):
    """What is wrong, and where."""

    message: str
    type: str
    """The kind of error, as OpenAI's clients know it."""
    param: str | None
    """The field at fault, as a client writes it: ``messages[0].content``."""
    code: str
    """For programs."""


class Error(_Answer):
    """Every answer that is none, and the last event of a stream that breaks off."""

    error: ErrorDetails


class CachedTokens(_Answer):
    """Of the prompt's tokens, those that came from the prefix cache."""

    cached_tokens: int


class Usage(_Answer):
    """Tokens of one request; a prompt counts once, whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Extras(_Answer):
    """What OpenAI's API has no place for."""

    seeds: list[int]
    """One for each prompt; to be sent as ``seed`` to get the same again."""


class TopLogprob(_Answer):
    """A token that could have been; −9999.0 stands for no chance at all."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token that was chosen."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    """One entry for each token."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(_Answer):
    """Lists with one entry for each token; null for the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AssistantMessage(_Answer):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class ChatChoice(_Answer):
    """One of ``n`` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(_Answer):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    chairlift: Extras


class FunctionDelta(_Answer):
    """More of a call; the name comes once, the arguments in pieces."""

    name: str = ""
    arguments: str = ""


class ToolCallDelta(_Answer):
    """More of one tool call."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionDelta


class Delta(_Answer):
    """What a chunk adds."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: list[ToolCallDelta] = []


class ChatChunkChoice(_Answer):
    """What a chunk adds to one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(_Answer):
    """One event of a streamed chat. The last has the usage, and no choices, if it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    chairlift: Extras | None = None


class CompletionChoice(_Answer):
    """One choice, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class CompletionChunk(_Answer):
    """One event of a streamed completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    chairlift: Extras | None = None


class Completion(CompletionChunk):
    """The answer to a prompt, or to each of several."""

    usage: Usage
    chairlift: Extras


class Model(_Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    """Tokens of a prompt and its answer at most."""


class Models(_Answer):
    """All models that are served."""

    object: Literal["list"]
    data: list[Model]


class Tokens(_Answer):
    """A text's tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(_Answer):
    """The text of tokens, special ones included."""

    prompt: str


class Replica(_Answer):
    """One replica; null for what is not known."""

    id: str
    live: bool
    running: int | None
    waiting: int | None
    blocks_used: int | None
    blocks_total: int | None
    report_age_s: float | None


class Health(_Answer):
    """``ok`` while a replica is live."""

    status: Literal["ok", "unavailable"]
    model: str
    replicas: list[Replica]


class Index(_Answer):
    """Where things are."""

    model: str
    endpoints: list[str]
