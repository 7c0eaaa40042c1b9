"""By which name the Hub is found in Ray."""

from __future__ import annotations

__all__ = ["HUB", "NAMESPACE"]

HUB = "chairlift-hub"
NAMESPACE = "chairlift"
