"""How fast the linear layers are: ``python -m chairlift.evaluation.kernels``.

Runs every linear layer of a model once, as a step does, for several numbers of rows: in float32 and
in int8 with our kernels, and in float32 with torch's. What the memory can bring is measured in the
same run, by a matrix-vector product over 512 MiB. Each figure is the best of some rounds, in which
the kinds take turns: other work on the machine can only slow them down.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.evaluation.flags import count
from chairlift.workers.kernel_choice import MathChoice, choose_encodings, choose_kernels
from chairlift.workers.weights import load_weights

__all__ = ["Figure", "main", "measure", "ours"]

_ROWS = (1, 8, 16, 32, 64, 256)
_STACKS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention out": ("self_attn.o_proj",),
    "gate, up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_HEAD, _ALL = "head", "all"
_READ_BYTES, _READ_WIDTH = 1 << 29, 4096
_PASSES = 3
"""Of one kind in a row: caches and threads are then as they are from step to step of a service."""

Run = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of one shape.

    Attributes:
        runs: one for each, from rows of inputs to outputs that nobody looks at.
        weights: of all of them.
        bytes: of these.
    """

    runs: tuple[Run, ...]
    inputs: int
    weights: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of kernels, one shape, one number of rows; ``all`` shapes are one after the other.

    Attributes:
        gflops: 10⁹ multiplications and additions a second, of whatever numbers.
        gb_per_s: bytes of weights, read once.
        ceiling: share of what the memory brings.
    """

    kernels: str
    shape: str
    rows: int
    ms: float
    gflops: float
    gb_per_s: float
    ceiling: float


def ours(spec: ModelSpec, math_: MathChoice, threads: int) -> dict[str, Layers]:
    """The layers of a model by shape, with the C++ kernels.

    Raises:
        StartupError: files or kernels are not as they must be.
    """
    kernels = choose_kernels("cpp", threads)
    keep = choose_encodings(math_, kernels, spec)
    weights = load_weights(spec, lambda _share: None, keep=keep)

    def run(names: Sequence[str]) -> tuple[Run, int, int, int]:
        layer = kernels.pack(*(weights[f"{name}.weight"] for name in names))

        def multiply(x: torch.Tensor) -> None:
            kernels.linear(x, layer, out=torch.empty(len(x), layer.outputs))

        size = sum(part.weight.nbytes for part in layer.parts)
        return multiply, layer.inputs, layer.inputs * layer.outputs, size

    return _by_shape(spec, run)


def theirs(spec: ModelSpec) -> dict[str, Layers]:
    """The same with torch, in float32."""
    weights = load_weights(spec, lambda _share: None)

    def run(names: Sequence[str]) -> tuple[Run, int, int, int]:
        parts = [weights[f"{name}.weight"] for name in names]
        matrix = torch.cat([part for part in parts if isinstance(part, torch.Tensor)])

        def multiply(x: torch.Tensor) -> None:
            torch.nn.functional.linear(x, matrix)

        return multiply, matrix.shape[1], matrix.numel(), matrix.nbytes

    return _by_shape(spec, run)


def _by_shape(
    spec: ModelSpec, run: Callable[[Sequence[str]], tuple[Run, int, int, int]]
) -> dict[str, Layers]:
    head = "model.embed_tokens" if spec.tied_embeddings else "lm_head"
    names = {
        shape: [
            [f"model.layers.{layer}.{name}" for name in stack] for layer in range(spec.num_layers)
        ]
        for shape, stack in _STACKS.items()
    } | {_HEAD: [[head]]}
    found = {}
    for shape, stacks in names.items():
        runs, inputs, sizes, nbytes = zip(*(run(stack) for stack in stacks), strict=True)
        found[shape] = Layers(runs, inputs[0], sum(sizes), sum(nbytes))
    return found


def measure(
    kinds: Mapping[str, Mapping[str, Layers]], rows: Sequence[int], rounds: int
) -> list[Figure]:
    """Every kind with every number of rows."""
    best: dict[tuple[str, str, int], float] = {}
    numbers, reading = torch.ones(_READ_BYTES // 4 // _READ_WIDTH, _READ_WIDTH), math.inf
    for height in rows:
        for _ in range(rounds):
            reading = min(reading, _time([numbers.mv], torch.ones(_READ_WIDTH)))
            for kind, layers in kinds.items():
                for shape, seconds in chain(*(_pass(layers, height) for _ in range(_PASSES))):
                    place = kind, shape, height
                    best[place] = min(seconds, best.get(place, math.inf))
    memory = numbers.nbytes / reading
    figures = []
    for height in rows:
        for kind, layers in kinds.items():
            times = {shape: best[kind, shape, height] for shape in layers}
            for shape, each in layers.items():
                figures.append(_figure((kind, shape, height), [each], times[shape], memory))
            everything = list(layers.values())
            figures.append(_figure((kind, _ALL, height), everything, sum(times.values()), memory))
    return figures


def _figure(
    place: tuple[str, str, int], layers: Sequence[Layers], seconds: float, memory: float
) -> Figure:
    kernels, shape, rows = place
    rate = sum(each.bytes for each in layers) / seconds
    return Figure(
        kernels=kernels,
        shape=shape,
        rows=rows,
        ms=seconds * 1e3,
        gflops=2 * rows * sum(each.weights for each in layers) / seconds / 1e9,
        gb_per_s=rate / 1e9,
        ceiling=rate / memory,
    )


def _pass(layers: Mapping[str, Layers], rows: int) -> Iterator[tuple[str, float]]:
    for shape, each in layers.items():
        yield shape, _time(each.runs, torch.randn(rows, each.inputs))


def _time(runs: Sequence[Run], x: torch.Tensor) -> float:
    start = time.perf_counter()
    for run in runs:
        run(x)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; 2 when the model or the kernels cannot be had."""
    parser = argparse.ArgumentParser(prog="kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--rows", type=count, nargs="+", default=_ROWS)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        spec = read_spec(resolve_model(arguments.model))
        kinds = {
            "int8": ours(spec, "auto", arguments.threads),
            "float32": ours(spec, "float32", arguments.threads),
            "torch": theirs(spec),
        }
    except StartupError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2
    with torch.inference_mode():
        figures = measure(kinds, arguments.rows, arguments.rounds)
    Console().print(_table(figures))
    if arguments.json:
        text = json.dumps([asdict(figure) for figure in figures], indent=2)
        Path(arguments.json).write_text(text, encoding="utf-8")
    return 0


def _table(figures: Sequence[Figure]) -> Table:
    table = Table("kernels", "layers", title="linear layers")
    for name in ("rows", "ms", "GFLOP/s", "GB/s", "of memory"):
        table.add_column(name, justify="right")
    for each in figures:
        at_one = each.rows == 1
        table.add_row(
            each.kernels,
            each.shape,
            str(each.rows),
            f"{each.ms:.2f}",
            f"{each.gflops:.0f}",
            f"{each.gb_per_s:.1f}" if at_one else "",
            f"{each.ceiling:.0%}" if at_one else "",
            end_section=each.shape == _ALL,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
