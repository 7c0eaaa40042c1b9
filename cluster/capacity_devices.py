"""What devices can do by their vendors' data sheets, and how much of that a server gets.

Owns the table of GPUs and the efficiency factors that stand between a data sheet and a step; both
are assumptions of ``cluster.capacity``, which says so beside every figure. Measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["CPU", "DEVICES", "Cases", "Device", "Efficiency", "efficiencies"]

CPU = "cpu"

_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_A10G = (
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)
_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or the processors of a machine together.

    Attributes:
        memory: bytes. Data sheets mean 10⁹ bytes or 2³⁰ by a GB, so the smaller is taken.
        bandwidth: bytes that its memory brings in a second.
        flops: dense operations a second by type of the weights (a multiplication and an addition
            are two); never those "with sparsity", which are twice as many.
        link: bytes a second to and from another one of its group, one way; 0 where unknown.
        source: where the figures are from.
    """

    name: str
    memory: float
    bandwidth: float
    flops: dict[str, float]
    link: float
    source: str

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Which part of a data sheet's figures a step gets.

    Attributes:
        memory: of the bandwidth, for weights; ``attention`` for keys and values.
        compute: of the operations.
        overlap: of the shorter of the two that hides behind the longer; at 1 a step takes the
            longer one, which is the roofline, at 0 both.
        overhead_s: of a step, whatever is in it: scheduling, sampling, launches.
        exchange_s: of one sum over a group's devices, besides its bytes; a layer needs two.
    """

    memory: float
    attention: float
    compute: float
    overlap: float
    overhead_s: float
    exchange_s: float


@dataclass(frozen=True, slots=True)
class Cases:
    """A figure that is not known for sure: the worst case, the expected one and the best one."""

    worst: Efficiency
    expected: Efficiency
    best: Efficiency


def efficiencies(device: Device, expected: float | None = None) -> Cases:
    """What to count with.

    On GPUs these are this project's aims (docs/gpu.md) with a wide margin, for nothing has been
    measured there; on CPUs they were fitted to decoding on one machine, which
    ``python -m chairlift.evaluation.plan_check`` repeats on any other.

    Args:
        device: of the plan.
        expected: in place of the expected part of bandwidth and operations alike; a fifth more
            and less bound it then.
    """
    cases = _ON_CPU if device.is_cpu else _ON_GPU
    if expected is None:
        return cases

    def scaled(case: Efficiency, factor: float) -> Efficiency:
        part = min(1.0, factor * expected)
        return replace(case, memory=part, attention=part, compute=part)

    return Cases(scaled(cases.worst, 0.8), scaled(cases.expected, 1.0), scaled(cases.best, 1.2))


_ON_GPU = Cases(
    worst=Efficiency(0.5, 0.4, 0.35, 0.0, 2e-3, 40e-6),
    expected=Efficiency(0.7, 0.6, 0.55, 0.5, 0.8e-3, 20e-6),
    best=Efficiency(0.85, 0.8, 0.7, 1.0, 0.3e-3, 10e-6),
)
_ON_CPU = Cases(
    worst=Efficiency(0.75, 0.3, 0.35, 0.0, 0.5e-3, 200e-6),
    expected=Efficiency(0.95, 0.4, 0.45, 0.5, 0.2e-3, 60e-6),
    best=Efficiency(1.0, 0.6, 0.6, 1.0, 0.1e-3, 30e-6),
)


def _gpu(name: str, shape: tuple[float, float, float], flops: tuple[float, float | None],
         source: str) -> Device:  # fmt: skip
    """``shape``: GB, GB/s, and GB/s of the link; ``flops``: 10¹² in 16 bits and in 8."""
    memory, bandwidth, link = (_GIGA * each for each in shape)
    half, quarter = flops
    known = {"bfloat16": half * _TERA, "float16": half * _TERA}
    if quarter is not None:
        known["float8"] = quarter * _TERA
    return Device(name, memory, bandwidth, known, link, source)


# Links are one way: half of what sheets add up for NVLink; PCIe otherwise.
DEVICES: dict[str, Device] = {
    each.name: each
    for each in (
        _gpu("a10g", (24, 600, 32), (70, None), _A10G),
        _gpu("l4", (24, 300, 32), (121, 242.5), f"{_NVIDIA}/l4/"),
        _gpu("l40s", (48, 864, 32), (362, 733), f"{_NVIDIA}/l40s/"),
        _gpu("a100-40gb", (40, 1555, 300), (312, None), f"{_NVIDIA}/a100/"),
        _gpu("a100-80gb", (80, 2039, 300), (312, None), f"{_NVIDIA}/a100/"),
        _gpu("h100-pcie", (80, 2000, 64), (756, 1513), f"{_NVIDIA}/h100/"),
        _gpu("h100", (80, 3350, 450), (989, 1979), f"{_NVIDIA}/h100/"),
        _gpu("h200", (141, 4800, 450), (989, 1979), f"{_NVIDIA}/h200/"),
        _gpu("b200", (180, 8000, 900), (2250, 4500), f"{_NVIDIA}/dgx-b200/"),
    )
}
"""By the name that ``--gpu`` takes."""
