"""What others are told of encodings is what the kernels do with them."""

from __future__ import annotations

from chairlift.kernels.cpu.memory import Memory
from chairlift.kernels.cpu.panels import ENCODINGS, pack_quantised
from chairlift.kernels.encodings import PACKED_BYTES
from support.quantised_blocks import random_matrix


def test_packed_sizes_are_those_of_packed_matrices() -> None:
    assert PACKED_BYTES.keys() == ENCODINGS.keys()
    for kind, size in PACKED_BYTES.items():
        packed = pack_quantised(random_matrix(kind, 16, 2048), Memory())
        assert packed.nbytes == 16 * 2048 // 32 * size
