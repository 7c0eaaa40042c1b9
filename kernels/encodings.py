"""The encodings of GGUF that are computed with as they are, for those who import no torch."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PACKED_BYTES"]

PACKED_BYTES: Mapping[str, int] = {
    "Q4_0": 18,
    "Q4_1": 20,
    "Q4_K": 24,
    "Q5_0": 34,
    "Q8_0": 34,
    "Q6_K": 40,
}
"""Bytes that 32 weights take once they are packed; how, is known to ``kernels.cpu.panels``."""
