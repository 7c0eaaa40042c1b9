"""Compiles kernels for a Hopper GPU, which needs none, and prints their tensor core instructions.

python -m support.hopper; not in the interpreter, so in a process of its own.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chairlift.kernels.triton import attention, linear

INSTRUCTION = re.compile(r"wgmma\.mma_async\.sync\.aligned\.(m\d+)n\d+(k\d+\.\S+)|(mma\.sync\S+)")


def instructions(kernel: Any, arguments: dict[str, str], constants: dict[str, Any]) -> list[str]:
    """Rows, inputs at once and types of each; how many columns one has is left out."""
    options = {"num_warps": constants.pop("warps"), "num_stages": constants.pop("stages")}
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: arguments.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in arguments.items()
            if kind.startswith("*")
        },
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    return sorted({"".join(filter(None, found)) for found in INSTRUCTION.findall(ptx)})


def linear_tile(rows: int, *, spreads: bool) -> list[str]:
    tile = linear.tile_for(rows, torch.bfloat16)
    pointers = dict.fromkeys(("x", "weight", "bias", "out"), "*bf16")
    return instructions(
        linear._linear,
        pointers | {"partial": "*fp32", "arrived": "*i32", "count": "i32"},
        {
            **{"OUTPUTS": 4096, "INPUTS": 4096, "SPLITS": 4, "SPLIT": 1024, "SPREADS": spreads},
            **{"HAS_BIAS": False, "ADDS": True, "GROUP": 8},
            **{"TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs, "TILE_INPUTS": tile.inputs},
            **{"warps": tile.warps, "stages": tile.stages},
        },
    )


def attention_tile(*, spreads: bool) -> list[str]:
    pointers = dict.fromkeys(("qkv", "keys", "values", "out"), "*bf16")
    pointers |= dict.fromkeys(("tables", "context_lens", "query_lens"), "*i64")
    pointers |= dict.fromkeys(("row_starts", "tile_ends"), "*i32")
    numbers = dict.fromkeys(("sequences", "table_stride", "splits"), "i32")
    return instructions(
        attention._attend,
        pointers | {"parts": "*fp32", "norms": "*fp32", "scale": "fp32"} | numbers,
        {
            **{"HEADS": 32, "KV_HEADS": 8, "DIM": 128, "PADDED": 128, "WIDTH": 48 * 128},
            **{"BLOCK_SIZE": 16, "WINDOW": 0, "SOFT_CAP": 0.0, "SPREADS": spreads},
            **{"TILE_ROWS": 16, "STACKED": 64, "KEYS": 64, "SPLIT": 512, "warps": 4, "stages": 2},
        },
    )


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "linear": [
                    linear_tile(1, spreads=True),
                    linear_tile(128, spreads=True),
                    linear_tile(1000, spreads=False),
                ],
                "attention": [attention_tile(spreads=True), attention_tile(spreads=False)],
            }
        )
    )
