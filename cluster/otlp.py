"""What traces and metrics have in common on their way to a collector.

Owns who they say they are from, and how long one attempt may take. A collector that cannot be
reached is worth one line in the log, so the OpenTelemetry SDK's own complaints are not heard.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["SEND_TIMEOUT_S", "address", "resource"]

SEND_TIMEOUT_S = 5.0


def address(endpoint: str, path: str) -> str:
    """Where a collector takes what belongs at ``path``; hushes the SDK from here on."""
    for library in ("opentelemetry.exporter", "opentelemetry.sdk"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    return endpoint.rstrip("/") + path


def resource(service_name: str, instance: str) -> Resource:
    """Who speaks."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": service_name, "service.instance.id": instance})
