"""The machine under the report: what it is, and the ceilings of what it can do.

Owns the facts that stand beside every figure, and two measured ceilings: what its memory copies
and what its matrix products reach, in the numbers that a model is computed in.
"""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from chairlift.evaluation.gpu_clock import Clock, Deadline
from chairlift.evaluation.gpu_findings import Row, Section, Value

__all__ = ["ROOT", "Ceilings", "facts", "measure_ceilings"]

ROOT = Path(__file__).resolve().parents[1]
"""Of the repository, if this is one."""

_PACKAGES = ("torch", "triton", "transformers", "vllm-flash-attn", "flash-attn", "flash-attn-3")
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes (read and written, together) and operations (two for each product) per second."""

    copy: float
    products: float


def facts(device: torch.device) -> Row:
    """The card, its driver, what is installed, the commit and the time."""
    gpu = device.type == "cuda"
    found: dict[str, Value] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _answer("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "device": torch.cuda.get_device_name(device) if gpu else platform.processor() or "CPU",
        "python": platform.python_version(),
    }
    if gpu:
        properties = torch.cuda.get_device_properties(device)
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["memory, GB"] = properties.total_memory / 1e9
        found["driver"] = _answer(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
        found["cuda"] = str(torch.version.cuda)
    for package in _PACKAGES:
        found[package] = _version(package)
    return found


def measure_ceilings(
    clock: Clock,
    dtype: torch.dtype,
    shapes: Iterable[tuple[int, int, int]],
    copied_bytes: int,
    deadline: Deadline,
) -> tuple[Ceilings, Section]:
    """The ceilings, and each figure that they are the best of.

    Args:
        clock: of the device.
        dtype: of the matrices.
        shapes: rows, inputs and outputs of the products.
        copied_bytes: how much is copied; far more than any cache holds.
        deadline: when to stop.
    """
    section = Section("ceilings")
    with torch.inference_mode():
        copy_s = clock.time(_Copy(copied_bytes, clock.device), deadline).median
        copy = 2 * copied_bytes / copy_s
        section.add(
            {"what": f"copy of {copied_bytes / 1e9:.3g} GB", "ms": 1e3 * copy_s},
            {"GB/s (read + written)": copy / 1e9},
        )
        products = 0.0
        for rows, inputs, outputs in shapes:
            product_s = clock.time(
                _Product((rows, inputs, outputs), dtype, clock.device), deadline
            ).median
            rate = 2 * rows * inputs * outputs / product_s
            products = max(products, rate)
            section.add(
                {"what": f"{str(dtype)[6:]} product {rows} × {inputs} × {outputs}"},
                {"ms": 1e3 * product_s, "TFLOP/s": rate / 1e12},
            )
    return Ceilings(copy, products), section


class _Copy:
    """From one place in memory to another."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._source = torch.ones(size, dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)

    def __call__(self) -> None:
        self._target.copy_(self._source)


class _Product:
    """What the library makes of ``x weightᵀ``."""

    def __init__(
        self, sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, inputs, outputs = sizes
        self._x = torch.randn(rows, inputs, device=device).to(dtype)
        self._weight = torch.randn(outputs, inputs, device=device).to(dtype)
        self._out = torch.empty(rows, outputs, device=device, dtype=dtype)

    def __call__(self) -> None:
        torch.mm(self._x, self._weight.t(), out=self._out)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _answer(*command: str) -> str | None:
    """The first line that a program prints; None where it cannot."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.partition("\n")[0] or None
