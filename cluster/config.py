"""The one configuration tree: from a YAML file, flags and environment, checked once.

Owns the tree as a whole, and where values come from, weakest first: defaults, file, environment,
flags. Every flag of the command line is a path in this tree; ``config_sections`` says what each
section holds. Environment variables are read here only, and only when a configuration is built,
never at import.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config_sections import (
    Bytes,
    EngineConfig,
    GrpcConfig,
    GuardConfig,
    HttpConfig,
    ModelSource,
    RayConfig,
    RouterConfig,
    Section,
    StreamTlsConfig,
    TelemetryConfig,
    TenantConfig,
    TenantName,
    TlsConfig,
    TracingConfig,
    WorkersConfig,
    parse_bytes,
)
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_state import Mode
from chairlift.cluster.key_config import Keys, check_owners, key_terms
from chairlift.cluster.keys import KeyRing
from chairlift.cluster.tenants import ANONYMOUS, Tenants
from chairlift.cluster.yaml_text import parse_yaml, read_yaml

__all__ = [
    "EngineConfig",
    "GrpcConfig",
    "GuardConfig",
    "HttpConfig",
    "LedgerConfig",
    "ModelSource",
    "RayConfig",
    "RouterConfig",
    "ServiceConfig",
    "StreamTlsConfig",
    "TelemetryConfig",
    "TlsConfig",
    "TracingConfig",
    "WorkersConfig",
    "build_config",
    "cache_folder",
    "client_headers",
    "client_key",
    "cluster_token",
    "load_config",
    "parse_bytes",
    "set_environment",
]

ENVIRONMENT_PREFIX = "CHAIRLIFT__"
TOKEN_VARIABLE = "CHAIRLIFT_CLUSTER_TOKEN"


class LedgerConfig(Section):
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


class ServiceConfig(Section):
    """The whole tree."""

    model: ModelSource = ModelSource()
    http: HttpConfig = HttpConfig()
    grpc: GrpcConfig = GrpcConfig()
    router: RouterConfig = RouterConfig()
    engine: EngineConfig = EngineConfig()
    workers: WorkersConfig = WorkersConfig()
    ledger: LedgerConfig = LedgerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    guard: GuardConfig = GuardConfig()
    tracing: TracingConfig = TracingConfig()
    ray: RayConfig = RayConfig()
    tenants: dict[TenantName, TenantConfig] = Field(default_factory=dict)
    """By name; without any, everybody is ``anonymous`` and needs no key."""
    operators: dict[TenantName, Annotated[Keys, Field(min_length=1)]] = Field(default_factory=dict)
    """Who may give orders and read ledgers, by name; without any, whoever is on this machine."""

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, tenants: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
        check_owners({name: tenant.keys for name, tenant in tenants.items()})
        return tenants

    @field_validator("telemetry")
    @classmethod
    def _check_autoscaling(
        cls, telemetry: TelemetryConfig, info: ValidationInfo
    ) -> TelemetryConfig:
        scaling = info.data["workers"].autoscaling if "workers" in info.data else None
        if scaling is None:
            return telemetry
        if not telemetry.enabled:
            raise ValueError("workers.autoscaling goes by telemetry, which is not enabled")
        price, most = telemetry.price_per_replica_hour, scaling.max_price_per_hour
        if most is not None and not price:
            raise ValueError(
                "workers.autoscaling.max_price_per_hour needs telemetry.price_per_replica_hour"
            )
        if most is not None and price is not None and most < price * max(1, scaling.min_replicas):
            raise ValueError(
                f"workers.autoscaling.max_price_per_hour is {most:g}, which does not pay for "
                f"{max(1, scaling.min_replicas)} at {price:g} each"
            )
        return telemetry

    @field_validator("operators")
    @classmethod
    def _check_operators(cls, operators: dict[str, Keys]) -> dict[str, Keys]:
        check_owners(operators)
        return operators

    @property
    def guard_mode(self) -> Mode:
        """Without telemetry there is nothing to judge from."""
        return self.guard.mode if self.telemetry.enabled else Mode.OFF

    def who_is_served(self) -> Tenants:
        """The tenants, found by their keys."""
        if not self.tenants:
            return Tenants({}, ANONYMOUS)
        named = {name: each.tenant(name) for name, each in self.tenants.items()}
        keys = {name: each.keys for name, each in self.tenants.items()}
        by_key = {key.hash: named[name] for name, theirs in keys.items() for key in theirs}
        return Tenants(by_key, named.get(ANONYMOUS.name), key_terms(keys))

    def who_may_operate(self) -> KeyRing[str]:
        """The operators' names, found by their keys."""
        names = {key.hash: name for name, theirs in self.operators.items() for key in theirs}
        return KeyRing(names, key_terms(self.operators))


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
    return build_config(_read_file(Path(file)) if file is not None else {}, overrides, environment)


def build_config(
    tree: Mapping[str, Any],
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServiceConfig:
    """As ``load_config``, from what a file would hold."""
    merged = deepcopy(dict(tree))
    for path, value in _from_environment(os.environ if environment is None else environment):
        _set(merged, path, value)
    for path, value in (overrides or {}).items():
        if value is not None:
            _set(merged, path, value)
    try:
        return ServiceConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def _read_file(file: Path) -> dict[str, Any]:
    tree = read_yaml(file)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{file}: expected sections such as 'engine:', found a {type(tree).__name__}"
        )
    return tree


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, object]]:
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), parse_yaml(value, name))
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
    of_keys = "keys" in location or fault["type"] == "value_error"
    if (location[0] == "tenants" and of_keys) or location[0] == "operators":
        return f"{path}: {message}"  # about keys, which nobody wants to see in a log
    return f"{path}: {message} (got {fault['input']!r})"


def _known_keys(section: list[str]) -> list[str]:
    model: Any = ServiceConfig
    for part in section:
        if part in model.model_fields:  # else it is a name of the user's choosing, or a number
            model = _section_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting is, or holds under names or in a row."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """For compiled kernels and ledgers: ``$XDG_CACHE_HOME/chairlift``, or below ``~/.cache``.

    Args:
        environment: by default the process's.
    """
    given = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    # A relative path is void, says the XDG base directory specification.
    caches = Path(given) if Path(given).is_absolute() else Path("~/.cache").expanduser()
    return caches / "chairlift"


def cluster_token(
    config: WorkersConfig, environment: Mapping[str, str] | None = None
) -> ClusterToken:
    """The token of the cluster that this process is a part of.

    Args:
        config: where a file may be named that holds it; else it is ``$CHAIRLIFT_CLUSTER_TOKEN``.
        environment: by default the process's.

    Raises:
        ConfigError: there is none, or it is none that would do.
    """
    if config.token_file is not None:
        return ClusterToken.from_file(Path(config.token_file), "workers.token_file")
    text = (os.environ if environment is None else environment).get(TOKEN_VARIABLE)
    if text is None:
        raise ConfigError(
            f"the cluster has no token: name a file with one in workers.token_file, or set "
            f"{TOKEN_VARIABLE}, on every node; `openssl rand -hex 32` makes one"
        )
    return ClusterToken.parse(text, TOKEN_VARIABLE)


def client_key(environment: Mapping[str, str] | None = None) -> str | None:
    """For our own clients of a service: the API key in ``$CHAIRLIFT_API_KEY``, if there is one.

    Args:
        environment: by default the process's.
    """
    return (os.environ if environment is None else environment).get("CHAIRLIFT_API_KEY") or None


def client_headers(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The same as headers of a request."""
    key = client_key(environment)
    return {"Authorization": f"Bearer {key}"} if key else {}


def set_environment(flags: Mapping[str, str]) -> None:
    """Put flags for child processes into the environment; what the user has set stays."""
    for name, value in flags.items():
        os.environ.setdefault(name, value)
