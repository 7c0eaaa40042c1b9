"""Random matrices in the encodings of GGUF, and what each byte of them means.

Written from the description of the formats, one weight at a time; shares no code with the kernels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from chairlift.kernels.quantised import Quantised

# Weights of a block, and its bytes.
SIZES = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}
# Where half-precision numbers stand in a block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}


def random_matrix(kind: str, outputs: int, inputs: int, seed: int = 0) -> Quantised:
    """Every code occurs, and scales of both signs and many sizes, zero included."""
    random = np.random.default_rng(seed)
    weights, size = SIZES[kind]
    blocks = random.integers(0, 256, (outputs, inputs // weights, size), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = random.standard_normal(blocks.shape[:2]) * 10.0 ** random.integers(-4, 1)
        halves[random.random(halves.shape) < 0.02] = 0
        blocks[..., at : at + 2] = halves.astype("<f2")[..., None].view(np.uint8)
    return Quantised(kind, torch.from_numpy(blocks.reshape(outputs, -1)), inputs)


def parts_of(matrix: Quantised) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes, scales and minima, as ``kernels.reference.quantised_linear`` takes them."""
    _, size = SIZES[matrix.kind]
    rows = [
        [_PARTS[matrix.kind](bytes(row[i : i + size].tolist())) for i in range(0, len(row), size)]
        for row in matrix.blocks
    ]
    codes, scales, minima = (
        torch.tensor(np.array([[block[i] for block in row] for row in rows])).flatten(1)
        for i in range(3)
    )
    return codes, scales.float(), minima.float() if minima.numel() else None


def _half(data: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(data, "<f2", 1, at)[0])


def _q4_0(data: bytes):
    return [b % 16 - 8 for b in data[2:]] + [b // 16 - 8 for b in data[2:]], [_half(data, 0)], []


def _q4_1(data: bytes):
    codes = [b % 16 for b in data[4:]] + [b // 16 for b in data[4:]]
    return codes, [_half(data, 0)], [_half(data, 2)]


def _q5_0(data: bytes):
    fifth = int.from_bytes(data[2:6], "little")
    low = [b % 16 for b in data[6:]] + [b // 16 for b in data[6:]]
    return [c + 16 * (fifth >> i & 1) - 16 for i, c in enumerate(low)], [_half(data, 0)], []


def _q8_0(data: bytes):
    return [b - 256 * (b > 127) for b in data[2:]], [_half(data, 0)], []


def _q4_k(data: bytes):
    packed, scales, minima, codes = data[4:16], [], [], []
    for j in range(8):
        if j < 4:
            scale, minimum = packed[j] & 63, packed[j + 4] & 63
        else:
            scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
            minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4
        scales.append(_half(data, 0) * np.float32(scale))
        minima.append(-(_half(data, 2) * np.float32(minimum)))
        group = data[16 + j // 2 * 32 :][:32]
        codes += [b // 16 if j % 2 else b % 16 for b in group]
    return codes, scales, minima


def _q6_k(data: bytes):
    codes = []
    for i in range(256):
        half, within = divmod(i, 128)
        quarter, place = divmod(within, 32)
        low = data[64 * half + 32 * (quarter % 2) + place] >> 4 * (quarter // 2) & 15
        high = data[128 + 32 * half + place] >> 2 * quarter & 3
        codes.append((low | high << 4) - 32)
    signed = np.frombuffer(data, np.int8, 16, 192)
    return codes, [_half(data, 208) * np.float32(scale) for scale in signed], []


_PARTS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
