"""A page of metrics as its reader sees it.

Owns the look-up of values in Prometheus's text format; knows none of the names.
"""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["MetricsPage"]


class MetricsPage:
    """All samples of one page."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str) -> float:
        """The sum of a metric over all labels; LookupError when there is none of the name."""
        values = [sample.value for sample in self._samples if sample.name == name]
        if not values:
            raise LookupError(f"/metrics has no {name}")
        return sum(values)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric by one of its labels; empty when there is none of the name."""
        sums: dict[str, float] = defaultdict(float)
        for sample in self._samples:
            if sample.name == name:
                sums[sample.labels.get(label, "")] += sample.value
        return dict(sums)
