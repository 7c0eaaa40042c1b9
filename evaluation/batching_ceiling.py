"""What continuous batching can gain over static batching, from the output lengths alone.

Owns the arithmetic; measures nothing. Each decoding step gives one token to each occupied seat, and
a step is taken to cost the same however many seats are occupied, which favours continuous
batching. Prompts are free. So no honest measurement at equal seats comes out above these figures.

    static        a batch takes as many steps as its longest output has tokens
    continuous    no fewer steps than all tokens over all seats, and than the longest output

The ratio of the two is the most that can be gained.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["continuous_steps", "static_steps"]


def static_steps(outputs: Sequence[int], seats: int) -> int:
    """Steps in batches of ``seats``, in the order given."""
    return sum(max(outputs[i : i + seats]) for i in range(0, len(outputs), seats))


def continuous_steps(outputs: Sequence[int], seats: int) -> float:
    """Steps that any schedule needs."""
    return max(sum(outputs) / seats, max(outputs, default=0))
