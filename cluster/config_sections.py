"""The sections of the configuration tree: what can be set, within which limits, and the defaults.

Knows neither files nor flags nor the environment (``cluster.config``).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from chairlift.cluster.autoscaling_config import AutoscalingConfig
from chairlift.cluster.guard_state import Mode
from chairlift.cluster.key_config import Keys
from chairlift.cluster.protocol import Batching, Controls, Priority
from chairlift.cluster.tenants import Tenant

__all__ = [
    "Bytes",
    "CertificateConfig",
    "EngineConfig",
    "GrpcConfig",
    "GuardConfig",
    "HttpConfig",
    "ModelSource",
    "RayConfig",
    "RouterConfig",
    "Section",
    "StreamTlsConfig",
    "TelemetryConfig",
    "TenantConfig",
    "TenantName",
    "TlsConfig",
    "TracingConfig",
    "WorkersConfig",
    "parse_bytes",
]

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1024, "MI": 1024**2, "GI": 1024**3}


def parse_bytes(text: str | int) -> int:
    """``"512MiB"``, ``"2G"``, ``"1000000"`` or a number to bytes; ValueError otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?|)B?\s*", str(text).upper())
    if match is None:
        raise ValueError(f"{text!r} is no size; write for instance 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _bytes_or_auto(value: str | int) -> str | int:
    return value if value == "auto" else parse_bytes(value)


def _mode(value: object) -> object:
    """YAML reads a bare ``off`` as false."""
    return Mode.OFF if value is False else value


TenantName = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_-]{1,64}$")]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
BytesOrAuto = Annotated[Literal["auto"] | int, BeforeValidator(_bytes_or_auto)]
NodeResources = dict[
    Annotated[str, StringConstraints(pattern="^[a-z][a-z0-9]*(_[a-z0-9]+)+$", max_length=64)],
    Annotated[float, Field(gt=0, allow_inf_nan=False)],
]
"""Names that a cluster gives to what its nodes have, and how much of it is taken; Ray's own names
are one word."""


class Section(BaseModel):
    """A part of the tree: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSource(Section):
    """Which model, and under which name it is offered."""

    path: str = "smollm2"
    """``smollm2`` (embedded), a GGUF file, or a Hugging Face folder with safetensors."""
    name: str | None = None
    """The name that clients use; by default the one that the model carries."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "mistral_args"] = "auto"
    """How the model writes calls of tools; by default as its chat template does."""


class TlsConfig(Section):
    """PEM files, read again when they change."""

    certificate: str
    """With those that lead from it to its authority."""
    key: str
    """Without a pass phrase."""
    client_ca: str | None = None
    """Authorities of clients, who then need a certificate of one of them."""


class CertificateConfig(Section):
    """PEM files of one end, read again when they change."""

    certificate: str
    """With those that lead from it to its authority."""
    key: str
    """Without a pass phrase."""


class StreamTlsConfig(Section):
    """Of the streams from routers to workers; the same files are on each node."""

    ca: str
    """PEM file of an authority that signs for nobody else: whoever has a certificate of it is let
    in, if it has the cluster's token as well."""
    worker: CertificateConfig
    """Shown by workers; it is for the name ``chairlift-worker``."""
    router: CertificateConfig
    """Shown by routers."""


class HttpConfig(Section):
    """Where the OpenAI-style API listens, and what it reads."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    max_body: Bytes = 8 * 1024**2
    body_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    tls: TlsConfig | None = None
    """Without it the port speaks plain HTTP."""


class GrpcConfig(Section):
    """Where the gRPC APIs listen, and what they read (docs/grpc.md)."""

    enabled: bool = True
    host: str | None = None
    """By default that of HTTP."""
    port: Literal["auto"] | Annotated[int, Field(ge=1, le=65535)] = "auto"
    """``auto``: 1000 above the one of HTTP, so that services which differ in that differ in this;
    below it where there is no such port."""
    max_message: Bytes = 8 * 1024**2
    keepalive_s: Annotated[float, Field(ge=1)] = 20.0
    """A connection that is silent for so long is asked whether it lives."""
    connection_s: Annotated[float, Field(ge=1)] = 60.0
    """Age at which a connection is told to make way for a new one (calls that are under way end on
    it), so that clients spread over routers, and leave one that goes."""

    def address(self, http: HttpConfig) -> tuple[str, int]:
        """Host and port beside those of HTTP."""
        port = http.port + (1000 if http.port + 1000 <= 65535 else -1000)
        return self.host or http.host, port if self.port == "auto" else self.port


class Deadlines(Section):
    """Seconds to the first token, by class, where a request names no deadline of its own."""

    interactive: Annotated[float, Field(gt=0)] = 60.0
    standard: Annotated[float, Field(gt=0)] = 300.0
    batch: Annotated[float, Field(gt=0)] = 3600.0


class TenantConfig(Section):
    """One tenant; ``anonymous`` is the one that is served without a key."""

    keys: Keys = ()
    """Hashes of its API keys, as ``chairlift key`` prints them; each may have an expiry."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    priority: Literal["interactive", "standard", "batch"] = "interactive"
    """Class of its requests; a request may ask for a lower one."""
    prompt_tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    output_tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    max_requests: Annotated[int, Field(ge=1)] | None = None
    """Open at the same time."""
    private_cache: bool = False
    """Its prompts share no cached prefix with others'."""

    def tenant(self, name: str) -> Tenant:
        """This tenant, as those who serve it know it."""
        return Tenant(
            name,
            weight=self.weight,
            priority=Priority[self.priority.upper()],
            prompt_tokens_per_minute=self.prompt_tokens_per_minute,
            output_tokens_per_minute=self.output_tokens_per_minute,
            max_requests=self.max_requests,
            private_cache=self.private_cache,
        )


class RouterConfig(Section):
    """The router deployment."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Routers; those of one node share the HTTP port."""
    resources: NodeResources = Field(default_factory=dict)
    """Taken by each from its node, so that routers are only where a node has these."""
    max_requests: Annotated[int, Field(ge=1)] = 4096
    """Requests that one router holds at most, streaming and waiting together."""
    max_choices: Annotated[int, Field(ge=1)] = 128
    """Choices of one HTTP request at most: prompts × n."""
    max_queued: Annotated[int, Field(ge=0)] = 2048
    """Requests that wait in one router for a replica at most."""
    max_queued_tokens: Annotated[int, Field(ge=0)] = 4_000_000
    """Prompt tokens of these, together."""
    placement: Literal["prefix-aware", "least-loaded", "power-of-two", "round-robin"] = (
        "prefix-aware"
    )
    look_ahead: Annotated[int, Field(ge=0)] = 2
    """Sequences of one tenant that wait in a replica's line, so that no seat stays empty."""
    fair: bool = True
    """Serve tenants by weight, in routers and engines; else in order of arrival."""
    deadlines: Deadlines = Deadlines()
    promote_after_s: Annotated[float, Field(gt=0)] = 20.0
    """A request that has waited this long goes one class up, and again each time."""
    wait_for_replica_s: Annotated[float, Field(ge=0)] = 60.0
    """How long requests wait while there is no replica at all."""
    max_moves: Annotated[int, Field(ge=0)] = 3
    """How often one request may go on elsewhere after a replica was lost."""
    moves_share: Annotated[float, Field(ge=0)] = 0.1
    """Moves of a tenant in a minute at most, as a share of its requests in that minute; …"""
    moves_floor: Annotated[int, Field(ge=0)] = 256
    """… but so many at least, for one replica's loss moves all that it ran."""
    hedging: bool = False
    """Move a sequence that has not started after the p99 of the usual time."""
    silence_s: Annotated[float, Field(gt=0)] = 1.5
    """A replica that says nothing for so long is lost; a worker speaks four times a second."""
    stuck_after_s: Annotated[float, Field(gt=0)] = 20.0
    """A replica whose step takes longer is lost, although it speaks."""


class EngineConfig(Section):
    """One replica's engine."""

    max_sequences: Annotated[int, Field(ge=1, le=4096)] = 32
    """Seats: sequences that run at the same time."""
    token_budget: Annotated[int, Field(ge=1, le=65536)] = 512
    """Tokens of one step at most, prompts and decoding together."""
    max_waiting: Annotated[int, Field(ge=0)] = 512
    """Sequences that wait for a seat at most; more are refused."""
    kv_memory: BytesOrAuto = "auto"
    """KV cache of one replica; ``auto`` takes a quarter of the free memory, at most 2 GiB, and on a
    GPU nine tenths of what weights and the largest step leave."""
    block_size: Annotated[int, Field(ge=1, le=256)] = 16
    """Positions of one block; the C++ kernels are fastest with multiples of 16."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes; ``auto`` takes a GPU where torch has one."""
    kernels: Literal["auto", "cpp", "torch", "triton"] = "auto"
    """``cpp`` (CPU) and ``triton`` (GPU) compute each sequence bit for bit as if it were alone;
    ``cpp`` needs a C++ compiler at the first start, and ``auto`` falls back to ``torch`` without
    one."""
    exact: bool = True
    """On a GPU: products that do not depend on who shares the batch; else cuBLAS chooses."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and KV cache on a GPU; ``auto`` takes what the model's configuration says."""
    kv_type: Literal["auto", "float8"] = "auto"
    """KV cache on a GPU; ``auto`` keeps it as ``dtype`` says."""
    attention: Literal["auto", "flash", "triton"] = "auto"
    """Attention on a GPU; ``auto`` takes a FlashAttention package where one fits."""
    graph_sequences: Annotated[int, Field(ge=0)] = 256
    """On a GPU: steps of up to so many sequences are captured as CUDA graphs; 0: none."""
    cpu_math: Literal["auto", "float32", "int8"] = "auto"
    """``int8`` multiplies with quantised weights as the file has them, and with rounded inputs;
    it needs the C++ kernels and a quantised GGUF file, and is what ``auto`` chooses there."""
    batching: Batching = Batching.CONTINUOUS
    simulated_step_ms: Annotated[float, Field(ge=0)] | None = None
    """Compute nothing: a step takes this long, and tokens are a function of those before them.
    For load tests of routers and clients, on machines that could not run the model that fast."""
    prefix_cache: bool = True
    """Compute what prompts have in common once, and keep it while there is room."""

    def controls(self, *, fair: bool = True) -> Controls:
        """The Controls that are in force at the start."""
        return Controls(
            batching=self.batching,
            token_budget=self.token_budget,
            max_sequences=self.max_sequences,
            fair=fair,
        )


class WorkersConfig(Section):
    """The worker replicas."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Unless ``autoscaling`` says how many there are."""
    autoscaling: AutoscalingConfig | None = None
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Workers that compute one copy of the model together, each with a share of it."""
    resources: NodeResources = Field(default_factory=dict)
    """Taken by each rank from its node, so that ranks are only where a node has these."""
    transport: Literal["auto", "shared", "gloo", "nccl"] = "auto"
    """Between the workers of one copy; ``auto``: ``nccl`` on GPUs, ``shared`` memory on one CPU
    node, ``gloo`` across CPU nodes."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """CPU threads of one worker; ``auto`` shares the machine's cores among all of them."""
    health_period_s: Annotated[float, Field(gt=0)] = 1.0
    stuck_after_s: Annotated[float, Field(gt=0)] = 60.0
    """A step that takes longer than this fails the replica's health check."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    tls: StreamTlsConfig | None = None
    """Without it the streams from routers are plain text, which the cluster's token protects from
    strangers, but not from listeners."""
    token_file: str | None = None
    """With the cluster's token, on each node; without one it is in ``$CHAIRLIFT_CLUSTER_TOKEN``,
    except for ``chairlift serve``, which draws it with each start."""

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        if self.autoscaling is not None and "replicas" in self.model_fields_set:
            raise ValueError("set either replicas or autoscaling, not both")
        return self

    @property
    def least(self) -> int:
        """Replicas that there always are."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas

    @property
    def most(self) -> int:
        """Replicas that there may be."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas


class TracingConfig(Section):
    """One trace a request, over all processes that had a part in it (docs/tracing.md)."""

    endpoint: Annotated[str, StringConstraints(pattern="^https?://[^/]+")] | None = None
    """Of a collector that takes OTLP over HTTP, such as ``http://localhost:4318``; without one
    nothing is traced, and metrics are only where they are asked for."""
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the traces that are recorded, where the client does not say."""
    service_name: Annotated[str, Field(min_length=1)] = "chairlift"


class TelemetryConfig(Section):
    """What the Hub learns of requests, and what it measures them against."""

    enabled: bool = True
    """Else routers keep their own counts alone, and a single one needs no Hub."""
    first_token_target_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds to the first token that a good request takes at most; …"""
    per_token_target_s: Annotated[float, Field(gt=0)] = 0.1
    """… and for each token after it."""
    price_per_replica_hour: Annotated[float, Field(ge=0)] | None = None
    """In whatever currency; None where cost is of no interest."""
    tenants: Annotated[int, Field(ge=1, le=256)] = 32
    """Told apart at most, those that were served most; the others are counted together."""


class GuardConfig(Section):
    """What watches over the service (docs/guard.md)."""

    mode: Annotated[Mode, BeforeValidator(_mode)] = Mode.ACT
    """``shadow`` only says what it would do; without telemetry it is ``off`` in any case."""
    file: str | None = None
    """YAML with thresholds, owners and webhooks; by default ``cluster/guard.yaml``."""


class RayConfig(Section):
    """The Ray cluster that ``chairlift serve`` starts for itself."""

    temp_dir: str | None = None
    """Folder for Ray's sockets and logs; by default a new one under the system's, removed on a
    clean stop."""
    object_store: Bytes = 128 * 1024**2
