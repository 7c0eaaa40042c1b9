import contextlib
import random
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.certificate_ends import METRIC, certificate_families, ends_at
from support.certificates import Authority


def element(tag: int, *content: bytes) -> bytes:
    """In DER."""
    inside = b"".join(content)
    return bytes([tag, 0x82, *len(inside).to_bytes(2, "big")]) + inside


def made(tag: int, end: str) -> bytes:
    """What comes before the end of a certificate, and that."""
    begin = element(0x17, b"200101000000Z")
    validity = element(0x30, begin, element(tag, end.encode()))
    fields = (element(0xA0, b"x"), element(2, b"1"), element(0x30), element(0x30))
    return element(0x30, element(0x30, *fields, validity))


def test_the_end_of_a_certificate_is_the_one_that_others_read(tmp_path: Path):
    crt, _ = Authority(tmp_path).issue("server")
    expected = x509.load_pem_x509_certificate(crt.read_bytes()).not_valid_after_utc
    assert ends_at(crt.read_text()) == expected.timestamp()
    assert 0 < ends_at(crt.read_text()) - time.time() <= 86_400


def test_of_a_chain_the_earliest_end_counts(tmp_path: Path):
    early, _ = Authority(tmp_path).issue("early")
    pem, late = early.read_text(), ssl.DER_cert_to_PEM_cert(made(0x18, "22000101000000Z"))
    assert ends_at(late + pem) == ends_at(pem + late) == ends_at(pem) < ends_at(late)


@pytest.mark.parametrize(
    ("tag", "text", "year"),
    [(0x17, "490101000000Z", 2049), (0x17, "500101000000Z", 1950), (0x18, "22000101000000Z", 2200)],
)
def test_years_are_of_the_century_that_is_meant(tag: int, text: str, year: int):
    pem = ssl.DER_cert_to_PEM_cert(made(tag, text))
    assert ends_at(pem) == datetime(year, 1, 1, tzinfo=UTC).timestamp()


def test_damage_is_no_certificate_and_never_worse():
    rng, der = random.Random(0), made(0x18, "22000101000000Z")
    for _ in range(500):
        damaged = bytearray(der[: rng.randrange(1, len(der) + 1)])
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(ValueError):
            ends_at(ssl.DER_cert_to_PEM_cert(bytes(damaged)))
    with pytest.raises(ValueError, match="no certificate"):
        ends_at("nothing")


def test_the_page_has_those_that_are_configured_and_can_be_read(tmp_path: Path):
    assert samples(ServiceConfig()) == {}
    authority = Authority(tmp_path)
    crt, key = authority.issue("server")
    tree = {"http": {"tls": {"certificate": str(crt), "key": str(key)}}}
    assert samples(ServiceConfig.model_validate(tree)) == {"http.tls": ends_at(crt.read_text())}
    pair = {"certificate": str(crt), "key": str(key)}
    tree["workers"] = {"tls": {"ca": str(authority.file), "worker": pair, "router": pair}}
    assert set(samples(ServiceConfig.model_validate(tree))) == {
        "http.tls",
        "workers.tls.ca",
        "workers.tls.worker",
        "workers.tls.router",
    }
    crt.write_text("half")
    assert set(samples(ServiceConfig.model_validate(tree))) == {"workers.tls.ca"}


def samples(config: ServiceConfig) -> dict[str, float]:
    (family,) = certificate_families(config)
    assert family.name == METRIC
    return {each.labels["setting"]: each.value for each in family.samples}
