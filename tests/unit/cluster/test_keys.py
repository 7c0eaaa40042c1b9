"""Whose key one is, until when, and what is said of one that is refused."""

import logging

import pytest

from chairlift.cluster.errors import Unauthorized
from chairlift.cluster.keys import KeyRing, KeyTerms, hash_key


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_key_holds_until_the_moment_that_it_expires() -> None:
    clock = Clock()
    ring = KeyRing({hash_key("k"): "acme"}, {hash_key("k"): KeyTerms(1001.0, "acme/ci")}, clock)
    assert ring.find("k") == "acme"
    clock.now = 1001.0
    with pytest.raises(Unauthorized) as error:
        ring.find("k")
    assert (error.value.http_status, error.value.code) == (401, "expired_api_key")


def test_terms_of_one_key_are_not_those_of_another() -> None:
    owners = {hash_key("old"): "acme", hash_key("new"): "acme"}
    ring = KeyRing(owners, {hash_key("old"): KeyTerms(0.0)}, Clock())
    assert ring.find("new") == "acme"
    with pytest.raises(Unauthorized, match="expired"):
        ring.find("old")


@pytest.mark.parametrize("key", ["", "x", "K", "k ", hash_key("k"), "\ud800", "ä" * 100_000])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(Unauthorized) as error:
        KeyRing({hash_key("k"): "acme"}).find(key)
    assert error.value.code == "invalid_api_key"


def test_refusals_are_logged_without_the_key_or_its_hash(caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing({hash_key("old-secret"): "acme"}, {hash_key("old-secret"): KeyTerms(0.0, "ci")})
    with caplog.at_level(logging.DEBUG):
        for key in ("old-secret", "wrong-secret"):
            with pytest.raises(Unauthorized) as error:
                ring.find(key)
            assert "secret" not in str(error.value)
    assert [record.getMessage() for record in caplog.records] == [
        "refused an API key that has expired: ci",
        "refused an API key that is not known",
    ]
