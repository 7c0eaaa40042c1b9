"""Rules of sampling, alone and together, as every implementation is tested with."""

from __future__ import annotations

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
FILTERS = [
    {},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 1e-9},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 0.6, "top_k": 3, "top_p": 0.999},
]
