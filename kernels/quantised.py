"""Matrices whose weights stay as a GGUF file has them.

Owns the types that pass between who reads files and who computes; what the bytes mean is known to
``kernels.cpu.panels`` and, for what is not computed with as it is, to the ``gguf`` package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Matrix", "Quantised", "stack"]


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix (outputs, inputs).

    Attributes:
        kind: GGUF's name of the encoding, such as ``Q4_1``.
        blocks: (outputs, bytes of a row) uint8.
        inputs: weights of a row.
    """

    kind: str
    blocks: Tensor
    inputs: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.blocks.shape[0], self.inputs)


Matrix = Tensor | Quantised
"""(outputs, inputs), in float32 or quantised."""


def stack(matrices: Sequence[Matrix]) -> list[Matrix]:
    """One under the other: neighbours of the same kind become one matrix."""
    stacked: list[Matrix] = []
    for matrix in matrices:
        last = stacked[-1] if stacked else None
        if isinstance(last, Tensor) and isinstance(matrix, Tensor):
            stacked[-1] = torch.cat((last, matrix))
        elif (
            isinstance(last, Quantised)
            and isinstance(matrix, Quantised)
            and last.kind == matrix.kind
        ):
            blocks = torch.cat((last.blocks, matrix.blocks))
            stacked[-1] = Quantised(last.kind, blocks, last.inputs)
        else:
            stacked.append(matrix)
    return stacked
