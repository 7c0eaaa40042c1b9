"""What ``chairlift plan`` is asked: its flags, and the question that they come to.

Owns the flags. A model is read from its files, or given by numbers; a device is one of the table,
given by numbers, or this machine, which is measured then.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chairlift.cluster.capacity import Question, Targets, Wishes
from chairlift.cluster.capacity_devices import CPU, DEVICES, Cases, Device, efficiencies
from chairlift.cluster.capacity_model import (
    ELEMENT_BYTES,
    Lengths,
    Load,
    ModelFigures,
    figures_of,
    given_figures,
)
from chairlift.cluster.config import EngineConfig, parse_bytes
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.machine import read_memory
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.evaluation.flags import count, positive
from chairlift.workers.shards import check_degree, degrees
from chairlift.workers.weight_sizes import packed_size

__all__ = ["Asked", "add_arguments", "read_question"]

GIGA, TERA = 1e9, 1e12
_SHAPE = ("layers", "kv_heads", "head_size")
_USUAL_GROUP = 4
"""Attention heads that share a KV head, where nobody says."""
_MANY = (1, 2, 4, 8, 16)
_TOKEN_BUDGET = {True: 512, False: 2048}
_RESERVE = {True: 1.5 * 1024**3, False: 2.0 * 1024**3}
"""On CPUs: Ray, a router, a worker's own; on GPUs: the largest step, graphs, libraries."""
_TAIL = 2.0
"""The 95th percentile over the mean, where only the latter is given."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The question, the degrees that may answer it, and what is needed to write it down.

    Attributes:
        least_rate: requests a second in the calmest hour.
        model: as ``model.path`` has it; None where only numbers are known.
        kv_type: as ``engine.kv_type`` has it.
    """

    question: Question
    cases: Cases
    degrees: Sequence[int]
    least_rate: float
    model: str | None
    kv_type: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``plan``, but for those of its output."""
    model = parser.add_argument_group("model: one that is there, or its numbers")
    model.add_argument("--model", help="smollm2, a GGUF file or a Hugging Face folder")
    model.add_argument("--parameters", type=_parameters, help="how many weights: 8e9, 8B, 135M")
    model.add_argument("--layers", type=count)
    model.add_argument("--heads", type=count, help="of attention (4 for each KV head)")
    model.add_argument("--kv-heads", type=count)
    model.add_argument("--head-size", type=count)
    model.add_argument(
        "--dtype", choices=list(ELEMENT_BYTES), help="of weights (as the model has them)"
    )
    model.add_argument("--kv-type", choices=("auto", "float8"), default="auto", help="on a GPU")

    _add_device(parser.add_argument_group("device"))
    _add_load(parser.add_argument_group("load"))
    wishes = parser.add_argument_group("margins")
    wishes.add_argument(
        "--headroom", type=_share, default=0.2, help="share of seats that stays free (0.2)"
    )
    wishes.add_argument("--spares", type=_whole, default=1, help="replicas that may be missing (1)")
    wishes.add_argument("--token-budget", type=count, help="of a step (512; on a GPU 2048)")


def _add_device(device: argparse._ArgumentGroup) -> None:
    device.add_argument(
        "--gpu",
        required=True,
        metavar="NAME",
        help=f"cpu (this machine, measured where no numbers are given), {', '.join(DEVICES)}, or "
        "any name with all three numbers",
    )
    device.add_argument("--memory", type=_bytes, metavar="SIZE", help="of one device, 80GiB")
    device.add_argument("--memory-bandwidth", type=positive, metavar="GB/S")
    device.add_argument("--flops", type=positive, metavar="TFLOP/S", help="dense")
    device.add_argument("--tensor-parallel", type=count, metavar="N", help="devices of a replica")
    device.add_argument(
        "--efficiency", type=_share, metavar="SHARE", help="of those figures that a step gets"
    )
    device.add_argument("--price", type=positive, help="of one device for an hour")


def _add_load(load: argparse._ArgumentGroup) -> None:
    load.add_argument("--rate", type=positive, required=True, help="requests/s at the busiest")
    load.add_argument(
        "--least-rate", type=positive, metavar="RATE", help="at the calmest (a quarter of --rate)"
    )
    for name, mean in (("prompt", "512,1024"), ("output", "128,256")):
        load.add_argument(
            f"--{name}",
            type=_lengths,
            default=_lengths(mean),
            metavar="MEAN[,P95]",
            help=f"tokens ({mean}; without a 95th percentile twice the mean)",
        )
    load.add_argument(
        "--shared-prefix",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="of a prompt, that all have in common (0)",
    )
    load.add_argument(
        "--burstiness", type=positive, default=1.0, help="variation of arrivals (1: Poisson)"
    )
    load.add_argument(
        "--first-token", type=positive, default=1.0, metavar="S", help="target, p95 (1.0)"
    )
    load.add_argument(
        "--per-token", type=positive, default=0.1, metavar="S", help="target, mean (0.1)"
    )


def read_question(arguments: argparse.Namespace) -> Asked:
    """What the flags come to; measures this machine where it is to be the device.

    Raises:
        ConfigError: a flag is missing, or does not go with another.
        ModelError: there is no such model.
    """
    if arguments.model is not None and arguments.parameters is not None:
        raise ConfigError("--parameters: --model has them already; give one of the two")
    spec = None if arguments.model is None else read_spec(resolve_model(arguments.model))
    on_cpu = arguments.gpu == CPU
    model = _given_model(arguments, on_cpu) if spec is None else _read_model(arguments, spec)
    device = _device(arguments, model)
    load = Load(
        arguments.rate,
        arguments.prompt,
        arguments.output,
        arguments.shared_prefix,
        arguments.burstiness,
    )
    if spec is not None and load.longest > spec.context_length:
        raise ConfigError(
            f"--prompt, --output: one request in twenty has {load.longest:.0f} tokens, and "
            f"{spec.name} takes {spec.context_length}"
        )
    wishes = Wishes(
        token_budget=arguments.token_budget or _TOKEN_BUDGET[on_cpu],
        reserve=_RESERVE[on_cpu],
        headroom=arguments.headroom,
        spares=arguments.spares,
        price=arguments.price,
    )
    targets = Targets(arguments.first_token, arguments.per_token)
    return Asked(
        Question(model, device, load, targets, wishes),
        efficiencies(device, arguments.efficiency),
        _degrees(arguments, spec, on_cpu),
        arguments.least_rate or arguments.rate / 4,
        arguments.model,
        arguments.kv_type,
    )


def _read_model(arguments: argparse.Namespace, spec: ModelSpec) -> ModelFigures:
    if arguments.gpu == CPU:
        packed = packed_size(EngineConfig(cpu_math=_cpu_math(arguments) or "auto"), spec)
        return figures_of(spec, packed.math, packed.size, packed.cache_number)
    dtype = arguments.dtype or spec.stored_type
    return figures_of(spec, dtype, None, _kv_element(arguments, dtype))


def _given_model(arguments: argparse.Namespace, on_cpu: bool) -> ModelFigures:
    lacking = [name for name in ("parameters", *_SHAPE) if getattr(arguments, name) is None]
    if lacking:
        flags = ", ".join("--" + name.replace("_", "-") for name in lacking)
        raise ConfigError(f"without --model it takes {flags}")
    dtype = (_cpu_math(arguments) or "float32") if on_cpu else arguments.dtype or "bfloat16"
    kv_heads: int = arguments.kv_heads
    heads = arguments.heads or kv_heads * _USUAL_GROUP
    shape = (arguments.layers, heads, kv_heads, arguments.head_size)
    return given_figures(arguments.parameters, dtype, shape, _kv_element(arguments, dtype))


def _cpu_math(arguments: argparse.Namespace) -> Literal["float32", "int8"] | None:
    """The type of weights, as ``engine.cpu_math`` knows it; None where nobody says."""
    match arguments.dtype:
        case None:
            return None
        case "float32":
            return "float32"
        case "int8":
            return "int8"
    raise ConfigError(f"--dtype {arguments.dtype}: on a CPU it is float32 or int8")


def _kv_element(arguments: argparse.Namespace, dtype: str) -> float:
    """Bytes of a number in the KV cache."""
    if arguments.gpu == CPU:
        return 2.0 if dtype == "int8" else 4.0
    if arguments.kv_type == "float8":
        return 1.0
    return max(2.0, ELEMENT_BYTES[dtype])


def _device(arguments: argparse.Namespace, model: ModelFigures) -> Device:
    """The one that is named, with whatever numbers are given in place of its own."""
    device = DEVICES.get(arguments.gpu)
    if arguments.gpu == CPU:
        device = _this_machine(arguments)
    elif device is None:
        given = (arguments.memory, arguments.memory_bandwidth, arguments.flops)
        if None in given:
            raise ConfigError(
                f"--gpu {arguments.gpu}: there is {CPU}, {', '.join(DEVICES)}; for any other give "
                "--memory, --memory-bandwidth and --flops"
            )
        device = Device(arguments.gpu, 0, 0, {}, 0, "given")
    if arguments.memory is not None:
        device = replace(device, memory=float(arguments.memory))
    if arguments.memory_bandwidth is not None:
        device = replace(device, bandwidth=GIGA * arguments.memory_bandwidth)
    if arguments.flops is not None:
        device = replace(device, flops={model.dtype: TERA * arguments.flops})
    if model.dtype not in device.flops:
        raise ConfigError(
            f"--dtype {model.dtype}: {device.name} has {', '.join(device.flops)}; or give --flops"
        )
    return device


def _this_machine(arguments: argparse.Namespace) -> Device:
    """Its memory, and the ceilings that torch reaches unless they are given."""
    if arguments.memory_bandwidth is not None and arguments.flops is not None:
        return Device(CPU, float(read_memory().available), 0, {}, 0, "given")
    # torch takes seconds to import, and is wanted for this alone.
    from chairlift.evaluation.machine_ceilings import this_machine

    return this_machine()


def _degrees(arguments: argparse.Namespace, spec: ModelSpec | None, on_cpu: bool) -> Sequence[int]:
    """Those to try, the least first."""
    if (wanted := arguments.tensor_parallel) is not None:
        if spec is not None:
            check_degree(spec, wanted)
        return (wanted,)
    if on_cpu:
        return (1,)  # ranks of one machine are no faster than threads
    return _MANY if spec is None else degrees(spec)


def _parameters(text: str) -> float:
    """``8e9``, ``8B``, ``135M``."""
    unit = {"B": GIGA, "M": 1e6}.get(text[-1:].upper())
    return positive(text) if unit is None else unit * positive(text[:-1])


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: at least 0, below 1")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _lengths(text: str) -> Lengths:
    """A mean, and a 95th percentile if there is one."""
    mean, _, p95 = text.partition(",")
    found = Lengths(positive(mean), positive(p95) if p95 else _TAIL * positive(mean))
    if found.p95 < found.mean:
        raise argparse.ArgumentTypeError(f"{text}: the 95th percentile is below the mean")
    return found
