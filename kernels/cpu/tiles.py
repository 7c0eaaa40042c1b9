"""How a step's attention is cut into tiles, each the work of one thread.

The cut decides about speed only: it changes no bit of any result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from chairlift.kernels.interface import AttentionRows, Heads

__all__ = ["attention_tiles"]

# (position, head) pairs that read K and V together: what they gather should stay in the cache.
_TILE_PAIRS = 48


def attention_tiles(heads: Heads, rows: AttentionRows) -> Tensor:
    """(tiles, 4) int64: sequence, first row, rows, position of the first row.

    Each sequence's rows are cut into pieces; those with most work come first.

    Raises:
        IndexError: there are no angles for a position.
    """
    if int(rows.positions.max()) >= len(heads.cos):
        raise IndexError(f"a position is beyond the last, {len(heads.cos) - 1}")
    size = max(1, _TILE_PAIRS // (heads.num_heads // heads.num_kv_heads))
    counts, contexts = rows.query_lens.numpy(), rows.context_lens.numpy()
    pieces = -(-counts // size)
    sequence = np.repeat(np.arange(len(counts)), pieces)
    within = size * (np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    first = np.repeat(np.cumsum(counts) - counts, pieces) + within
    length = np.minimum(size, counts[sequence] - within)
    position = (contexts - counts)[sequence] + within
    tiles = np.stack((sequence, first, length, position), axis=1)
    seen = position + length
    work = length * (seen if heads.window is None else np.minimum(seen, heads.window + length))
    return torch.from_numpy(tiles[np.argsort(-work, kind="stable")])
