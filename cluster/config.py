"""The one configuration tree: from a YAML file, flags and environment, checked once.

Owns what can be configured, the defaults, and where values come from, weakest first: defaults,
file, environment, flags. Every flag of the command line is a path in this tree. Environment
variables are read here only, and only when a configuration is built, never at import.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.protocol import Batching, Controls, Priority
from chairlift.cluster.tenants import ANONYMOUS, Tenant, Tenants

__all__ = [
    "EngineConfig",
    "HttpConfig",
    "LedgerConfig",
    "ModelSource",
    "RayConfig",
    "RouterConfig",
    "ServiceConfig",
    "WorkersConfig",
    "cache_folder",
    "client_headers",
    "load_config",
    "parse_bytes",
    "set_environment",
]

ENVIRONMENT_PREFIX = "CHAIRLIFT__"

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1024, "MI": 1024**2, "GI": 1024**3}


def parse_bytes(text: str | int) -> int:
    """``"512MiB"``, ``"2G"``, ``"1000000"`` or a number to bytes; ValueError otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?|)B?\s*", str(text).upper())
    if match is None:
        raise ValueError(f"{text!r} is no size; write for instance 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _bytes_or_auto(value: str | int) -> str | int:
    return value if value == "auto" else parse_bytes(value)


def _hash_of_key(value: str) -> str:
    """The message leaves out the value, which may be a key by mistake."""
    if not re.fullmatch("sha256:[0-9a-f]{64}", value):
        raise ValueError("expected sha256: and 64 hexadecimal digits, as `chairlift key` prints it")
    return value


TenantName = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_-]{1,64}$")]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
BytesOrAuto = Annotated[Literal["auto"] | int, BeforeValidator(_bytes_or_auto)]


class _Section(BaseModel):
    """A part of the tree: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSource(_Section):
    """Which model, and under which name it is offered."""

    path: str = "smollm2"
    """``smollm2`` (embedded), a GGUF file, or a Hugging Face folder with safetensors."""
    name: str | None = None
    """The name that clients use; by default the one that the model carries."""


class HttpConfig(_Section):
    """Where the OpenAI-style API listens, and what it reads."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    max_body: Bytes = 8 * 1024**2
    body_timeout_s: Annotated[float, Field(gt=0)] = 30.0


class Deadlines(_Section):
    """Seconds to the first token, by class, where a request names no deadline of its own."""

    interactive: Annotated[float, Field(gt=0)] = 60.0
    standard: Annotated[float, Field(gt=0)] = 300.0
    batch: Annotated[float, Field(gt=0)] = 3600.0


class TenantConfig(_Section):
    """One tenant; ``anonymous`` is the one that is served without a key."""

    keys: tuple[Annotated[str, AfterValidator(_hash_of_key)], ...] = ()
    """Hashes of its API keys, as ``chairlift key`` prints them."""
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


class RouterConfig(_Section):
    """The router deployment."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Routers; those of one node share the HTTP port."""
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


class EngineConfig(_Section):
    """One replica's engine."""

    max_sequences: Annotated[int, Field(ge=1, le=4096)] = 32
    """Seats: sequences that run at the same time."""
    token_budget: Annotated[int, Field(ge=1, le=65536)] = 512
    """Tokens of one step at most, prompts and decoding together."""
    max_waiting: Annotated[int, Field(ge=0)] = 512
    """Sequences that wait for a seat at most; more are refused."""
    kv_memory: BytesOrAuto = "auto"
    """KV cache of one replica; ``auto`` takes a quarter of the free memory, at most 2 GiB."""
    block_size: Annotated[int, Field(ge=1, le=256)] = 16
    """Positions of one block; the C++ kernels are fastest with multiples of 16."""
    kernels: Literal["auto", "cpp", "torch"] = "auto"
    """``cpp`` computes each sequence bit for bit as if it were alone, and needs a C++ compiler at
    the first start; ``auto`` falls back to ``torch`` without one."""
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


class WorkersConfig(_Section):
    """The worker replicas."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """CPU threads of one worker; ``auto`` shares the machine's cores among the replicas."""
    health_period_s: Annotated[float, Field(gt=0)] = 1.0
    stuck_after_s: Annotated[float, Field(gt=0)] = 60.0
    """A step that takes longer than this fails the replica's health check."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0


class LedgerConfig(_Section):
    """The record of what each worker's scheduler decides, and why."""

    enabled: bool = True
    ring: Annotated[Bytes, Field(ge=64 * 1024)] = 16 * 1024**2
    """Memory of one replica for its newest records."""
    folder: str | None = None
    """Where files go; by default ``ledger`` in Chairlift's cache folder."""
    always: bool = False
    """Write every record to a file; else the ring alone, after an anomaly."""
    disk: Annotated[Bytes, Field(ge=1024**2)] = 256 * 1024**2
    """Bytes of all ledger files in the folder at most; the oldest go first."""

    @property
    def path(self) -> Path:
        return Path(self.folder) if self.folder is not None else cache_folder() / "ledger"


class RayConfig(_Section):
    """The Ray cluster that ``chairlift serve`` starts for itself."""

    temp_dir: str | None = None
    """Folder for Ray's sockets and logs; by default a new one under the system's, removed on a
    clean stop."""
    object_store: Bytes = 128 * 1024**2


class ServiceConfig(_Section):
    """The whole tree."""

    model: ModelSource = ModelSource()
    http: HttpConfig = HttpConfig()
    router: RouterConfig = RouterConfig()
    engine: EngineConfig = EngineConfig()
    workers: WorkersConfig = WorkersConfig()
    ledger: LedgerConfig = LedgerConfig()
    ray: RayConfig = RayConfig()
    tenants: dict[TenantName, TenantConfig] = Field(default_factory=dict)
    """By name; without any, everybody is ``anonymous`` and needs no key."""

    @field_validator("tenants")
    @classmethod
    def _check_keys(cls, tenants: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
        owners: dict[str, str] = {}
        for name, tenant in tenants.items():
            for key in tenant.keys:
                if (owner := owners.setdefault(key, name)) != name:
                    raise ValueError(f"{owner} and {name} have a key in common")
        return tenants

    def who_is_served(self) -> Tenants:
        """The tenants, found by their keys."""
        if not self.tenants:
            return Tenants({}, ANONYMOUS)
        named = {name: each.tenant(name) for name, each in self.tenants.items()}
        by_key = {key: named[name] for name, each in self.tenants.items() for key in each.keys}
        return Tenants(by_key, named.get(ANONYMOUS.name))


def load_config(
    file: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServiceConfig:
    """Build the tree.

    Args:
        file: YAML; None for none.
        overrides: dotted path → value, from flags; values of None are skipped.
        environment: by default the process's; ``CHAIRLIFT__ENGINE__TOKEN_BUDGET=256`` sets
            ``engine.token_budget``.

    Raises:
        ConfigError: one line that names the path at fault and, for an unknown key, the nearest
            valid one.
    """
    tree = _read_yaml(Path(file)) if file is not None else {}
    for path, value in _from_environment(os.environ if environment is None else environment):
        _set(tree, path, value)
    for path, value in (overrides or {}).items():
        if value is not None:
            _set(tree, path, value)
    try:
        return ServiceConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{file}: expected sections such as 'engine:', found a {type(tree).__name__}"
        )
    return tree


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, object]]:
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), yaml.safe_load(value))
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def _set(tree: dict[str, Any], path: str, value: object) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        below = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{parent}: expected a section, found {below!r}")
        tree = below
    tree[leaf] = value


def _one_line(error: ValidationError) -> str:
    """The first fault as ``path: what is wrong``, with a suggestion for a misspelt key."""
    fault = error.errors()[0]
    location = [str(part) for part in fault["loc"]]
    path = ".".join(location)
    if fault["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(location[-1], _known_keys(location[:-1]), n=1, cutoff=0)
        return f"{path}: unknown setting; did you mean {'.'.join([*location[:-1], *nearest])}?"
    message = fault["msg"].removeprefix("Value error, ")
    if location[0] == "tenants" and ("keys" in location or fault["type"] == "value_error"):
        return f"{path}: {message}"  # about keys, which nobody wants to see in a log
    return f"{path}: {message} (got {fault['input']!r})"


def _known_keys(section: list[str]) -> list[str]:
    model: Any = ServiceConfig
    for part in section:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[part].annotation
        else:  # a dictionary of sections, each under a name of the user's choosing
            model = get_args(model)[1]
    return list(model.model_fields)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """For compiled kernels and ledgers: ``$XDG_CACHE_HOME/chairlift``, or below ``~/.cache``.

    Args:
        environment: by default the process's.
    """
    given = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    # A relative path is void, says the XDG base directory specification.
    caches = Path(given) if Path(given).is_absolute() else Path("~/.cache").expanduser()
    return caches / "chairlift"


def client_headers(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """For our own clients of a service: the API key in ``$CHAIRLIFT_API_KEY``, if there is one.

    Args:
        environment: by default the process's.
    """
    key = (os.environ if environment is None else environment).get("CHAIRLIFT_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def set_environment(flags: Mapping[str, str]) -> None:
    """Put flags for child processes into the environment; what the user has set stays."""
    for name, value in flags.items():
        os.environ.setdefault(name, value)
