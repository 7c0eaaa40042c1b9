"""Everything that goes into a study: the manifest that its result carries.

Owns what is hashed and asked for, and under which names; compares nothing. What this machine does
not tell is left out, or None. Loads torch only where a real engine computes.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from chairlift import __version__
from chairlift.cluster.config import load_config
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.machine import read_cores, read_cpu, read_memory
from chairlift.cluster.model_files import resolve_model
from chairlift.evaluation.study_files import combined_sha256, sha256_of, to_tree
from chairlift.evaluation.study_plan import (
    EngineTarget,
    Plan,
    ServiceTarget,
    SimulatedTarget,
    Target,
    Trace,
)

__all__ = ["code_version", "hash_model", "hash_traces", "make_manifest", "surroundings"]

_ROOT = Path(__file__).resolve().parents[1]
"""Of the code: a repository, or the folder of an installed package."""

_SOURCES = ("client", "cluster", "deployments", "evaluation", "kernels", "router", "workers")
_SOURCE_SUFFIXES = frozenset({".py", ".cpp", ".h", ".cu", ".yaml", ".json", ".txt", ".proto"})
_PACKAGES = (
    "aiohttp",
    "gguf",
    "grpcio",
    "llguidance",
    "numpy",
    "orjson",
    "pydantic",
    "ray",
    "safetensors",
    "tokenizers",
    "torch",
    "triton",
    "uvloop",
)
_TOKENIZER_FILES = frozenset({
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
})  # fmt: skip
_WEIGHT_SUFFIXES = frozenset({".safetensors", ".gguf"})
_TEMPLATE = "tokenizer.chat_template"
_SECRET = frozenset({"keys", "operators", "webhooks"})
_ANSWER_S = 10.0


def make_manifest(
    plan: Plan, plan_sha256: str, traces: Path | None, command: str
) -> dict[str, object]:
    """A tree, by subject.

    Args:
        plan: the part that is run.
        plan_sha256: of its file.
        traces: the folder that recorded loads lie in.
        command: that began the study.

    Raises:
        ConfigError, ModelError: what the plan names is not there, or not as it must be.
    """
    return {
        "command": command,
        "plan": {"sha256": plan_sha256},
        "traces": hash_traces(plan, traces),
        "model": hash_model(plan.target),
        **surroundings(plan),
        "seeds": {"plan": plan.seed},
    }


def surroundings(plan: Plan) -> dict[str, object]:
    """The part of it that has nothing of traces and weights: code, versions, machine, settings."""
    commit, dirty = code_version()
    return {
        "configuration": _configuration(plan),
        "policy": _policy(plan),
        "code": {"commit": commit, "dirty": dirty, "sha256": _hash_code()},
        "versions": _versions(),
        "machine": _machine(),
        "kernels": _kernels(plan.target),
    }


def code_version() -> tuple[str | None, bool | None]:
    """Commit, and whether anything was changed since; None, None where this is no repository."""
    top = _answer("git", "-C", str(_ROOT), "rev-parse", "--show-toplevel")
    # A package that is installed below somebody's repository is none of its files.
    if not top or Path(top) != _ROOT:
        return None, None
    commit = _answer("git", "-C", str(_ROOT), "rev-parse", "HEAD")
    changed = _answer("git", "-C", str(_ROOT), "status", "--porcelain")
    return commit, None if changed is None else bool(changed)


def hash_traces(plan: Plan, folder: Path | None) -> dict[str, str | None]:
    """Hash of each recorded load, by its file's name; None where it is not in the folder."""
    found: dict[str, str | None] = {}
    for workload in plan.workloads.values():
        if isinstance(workload.source, Trace):
            file = None if folder is None else folder / workload.source.file
            there = file is not None and file.is_file()
            found[workload.source.file] = sha256_of(file) if there and file else None
    return found


def hash_model(target: Target) -> dict[str, str | None]:
    """Hashes of weights, tokenizer and chat template; empty where no model computes.

    Raises:
        ModelError: there is no such model.
    """
    match target:
        case SimulatedTarget():
            return {}
        case EngineTarget(model=name):
            path = resolve_model(name)
        case ServiceTarget():
            path = resolve_model(load_config(overrides=target.config).model.path)
    return {"name": path.name} | (_hash_folder(path) if path.is_dir() else _hash_gguf(path))


def _hash_gguf(file: Path) -> dict[str, str | None]:
    """One file holds all three; the last two are hashed from its metadata."""
    told = GgufFile.open(file).metadata
    names = sorted(name for name in told if name.startswith("tokenizer."))
    return {
        "weights": sha256_of(file),
        "tokenizer": combined_sha256((n, repr(told[n]).encode()) for n in names if n != _TEMPLATE),
        "template": combined_sha256([("", told[_TEMPLATE].encode())])
        if _TEMPLATE in told
        else None,
    }


def _hash_folder(folder: Path) -> dict[str, str | None]:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    template = folder / "chat_template.jinja"
    parts = {
        "weights": [file for file in files if file.suffix in _WEIGHT_SUFFIXES],
        "tokenizer": [file for file in files if file.name in _TOKENIZER_FILES],
        "config": [
            file for file in files if file.name in ("config.json", "generation_config.json")
        ],
        "template": [template] if template.is_file() else [],
    }
    return {
        name: combined_sha256((file.name, sha256_of(file).encode()) for file in of)
        for name, of in parts.items()
    }


def _configuration(plan: Plan) -> dict[str, object]:
    """What each arm is told, and of a service all that follows from its settings."""
    sizes = {
        name: getattr(plan, name) for name in ("seats", "token_budget", "block_size", "blocks")
    }
    arms = {name: to_tree(arm) for name, arm in plan.arms.items()}
    tree: dict[str, object] = {"target": to_tree(plan.target), "replica": sizes, "arms": arms}
    if isinstance(plan.target, ServiceTarget):
        tree["service"] = to_tree(load_config(overrides=plan.target.config))
    # Results are shown to others: nobody's keys, not even their hashes.
    return _without(tree, _SECRET)


def _policy(plan: Plan) -> dict[str, object]:
    """The Guard's, where some arm has one."""
    if all(arm.guard == "off" for arm in plan.arms.values()):
        return {}
    file = None
    if isinstance(plan.target, ServiceTarget):
        file = load_config(overrides=plan.target.config).guard.file
    return _without(to_tree(load_policy(file)), _SECRET)


def _without(tree: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {
        name: _without(part, names) if isinstance(part, dict) else part
        for name, part in tree.items()
        if name not in names
    }


def _hash_code() -> str:
    """Of the files that run: it tells two dirty trees apart, and works without a repository."""
    files = sorted(
        file
        for folder in _SOURCES
        for file in (_ROOT / folder).rglob("*")
        if file.suffix in _SOURCE_SUFFIXES and file.is_file()
    )
    return combined_sha256(
        (file.relative_to(_ROOT).as_posix(), file.read_bytes()) for file in files
    )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "chairlift": __version__,
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _machine() -> dict[str, object]:
    cores = read_cores()
    return {
        "processor": read_cpu().model,
        "architecture": platform.machine(),
        "cores": cores.total,
        "usable_cores": cores.usable,
        "memory_bytes": read_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "gpus": (_answer(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ) or "").splitlines(),
    }  # fmt: skip


def _kernels(target: Target) -> Mapping[str, object]:
    if isinstance(target, SimulatedTarget):
        return {}
    from chairlift.workers.kernel_choice import describe_kernels

    return describe_kernels()


def _answer(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
