"""Every parser of what comes from outside, or from a disk."""

from __future__ import annotations

from fuzz.grpc_messages import GRPC
from fuzz.http_bodies import HTTP
from fuzz.model_files import (
    CONFIGURATION,
    GGUF,
    GGUF_TOKENIZER,
    SAFETENSORS,
    SETTINGS,
    TEMPLATE,
    TOKENIZER,
)
from fuzz.own_files import CONFIG, LEDGER, POLICY
from fuzz.target import Target
from fuzz.worker_messages import RANKS, TO_ROUTER, TO_WORKER

__all__ = ["TARGETS", "find"]

TARGETS: tuple[Target, ...] = (
    HTTP,
    GRPC,
    TO_WORKER,
    TO_ROUTER,
    RANKS,
    GGUF,
    SAFETENSORS,
    CONFIGURATION,
    TOKENIZER,
    SETTINGS,
    GGUF_TOKENIZER,
    TEMPLATE,
    LEDGER,
    CONFIG,
    POLICY,
)


def find(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)
