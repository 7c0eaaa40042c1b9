"""Until when a service's certificates hold, as figures of a router.

Owns the metric, and the reading of that one moment: X.509 is nested DER, in which it has a fixed
place, and the standard library tells it of other people's certificates alone. Files are read when
the page is; what is in force is ``deployments.tls``'s.

    SEQUENCE            certificate
      SEQUENCE          what is signed
        [0]             version, if it is there
        INTEGER         serial number
        SEQUENCE        algorithm
        SEQUENCE        issuer
        SEQUENCE        validity: not before, not after
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from chairlift.cluster.config import ServiceConfig

__all__ = ["METRIC", "certificate_families", "ends_at"]

METRIC = "chairlift_certificate_end_timestamp_seconds"

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_BEFORE_VALIDITY = 3
"""Fields, without the version."""


def certificate_families(config: ServiceConfig) -> Iterator[Metric]:
    """One sample for each certificate that is configured and can be read."""
    text = "When the certificate ends, or one that leads to its authority; seconds since 1970."
    family = GaugeMetricFamily(METRIC, text, labels=["setting"])
    for setting, file in _files(config):
        try:
            family.add_metric([setting], ends_at(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # it is half written; what is in force is another one
    yield family


def ends_at(pem: str) -> float:
    """The earliest end of all certificates in a file; ValueError where there is none."""
    ends = [_not_after(ssl.PEM_cert_to_DER_cert(block)) for block in _BLOCK.findall(pem)]
    if not ends:
        raise ValueError("no certificate")
    return min(ends)


def _files(config: ServiceConfig) -> Iterator[tuple[str, str]]:
    if (http := config.http.tls) is not None:
        yield "http.tls", http.certificate
    if (workers := config.workers.tls) is not None:
        yield "workers.tls.worker", workers.worker.certificate
        yield "workers.tls.router", workers.router.certificate
        yield "workers.tls.ca", workers.ca


def _not_after(der: bytes) -> float:
    _, at, _ = _element(der, 0, _SEQUENCE)
    _, at, _ = _element(der, at, _SEQUENCE)
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in range(_BEFORE_VALIDITY):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at, _SEQUENCE)
    _, _, at = _element(der, at)
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 50 is 1950
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int, wanted: int | None = None) -> tuple[int, int, int]:
    """Tag, begin and end of the content of what stands there; ValueError where nothing does."""
    try:
        tag, size, start = der[at], der[at + 1], at + 2
    except IndexError:
        raise ValueError("it ends early") from None
    if size & 0x80:
        digits = size & 0x7F
        size = int.from_bytes(der[start : start + digits], "big")
        start += digits
    if start + size > len(der) or (wanted is not None and tag != wanted):
        raise ValueError("not what is to stand there")
    return tag, start, start + size
