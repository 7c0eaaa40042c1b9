"""A typed client for Chairlift's HTTP API: ``Client`` for threads, ``AsyncClient`` for asyncio."""

from chairlift.client.async_client import AsyncClient
from chairlift.client.async_stream import AsyncStream
from chairlift.client.client import Client
from chairlift.client.errors import (
    BadAnswer,
    ClientError,
    DeadlineExceeded,
    Interrupted,
    InvalidRequest,
    NotAllowed,
    NotConnected,
    NotFound,
    Overloaded,
    ServerFailed,
    Unavailable,
)
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
from chairlift.client.retries import RetryPolicy
from chairlift.client.stream import Stream

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "BadAnswer",
    "Choice",
    "Client",
    "ClientError",
    "DeadlineExceeded",
    "Delta",
    "Health",
    "Interrupted",
    "InvalidRequest",
    "Model",
    "NotAllowed",
    "NotConnected",
    "NotFound",
    "Overloaded",
    "ReplicaHealth",
    "RetryPolicy",
    "ServerFailed",
    "Stream",
    "TokenLogprob",
    "Tokenized",
    "ToolCall",
    "ToolCallDelta",
    "Unavailable",
    "Usage",
]
