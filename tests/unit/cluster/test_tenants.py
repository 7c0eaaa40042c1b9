import pytest

from chairlift.cluster.errors import Unauthorized
from chairlift.cluster.tenants import ANONYMOUS, Tenant, Tenants, hash_key

ACME, ZENO = Tenant("acme", weight=2.0), Tenant("zeno")


def test_a_tenant_is_found_by_any_of_its_keys():
    tenants = Tenants({hash_key("k1"): ACME, hash_key("k2"): ACME, hash_key("k3"): ZENO}, None)
    assert tenants.find("k1") is tenants.find("k2") is ACME
    assert tenants.find("k3") is ZENO


def test_an_unknown_key_is_refused_even_where_none_is_needed():
    tenants = Tenants({hash_key("k1"): ACME}, ANONYMOUS)
    with pytest.raises(Unauthorized) as caught:
        tenants.find("k2")
    assert caught.value.code == "invalid_api_key"
    assert "k2" not in caught.value.message


def test_a_missing_key_is_refused_unless_somebody_is_served_without():
    with pytest.raises(Unauthorized) as caught:
        Tenants({hash_key("k1"): ACME}, None).find(None)
    assert caught.value.code == "missing_api_key"
    assert Tenants({hash_key("k1"): ACME}, ZENO).find(None) is ZENO


def test_any_key_will_do_where_no_tenants_are_configured():
    tenants = Tenants({}, ANONYMOUS)
    assert tenants.find(None) is tenants.find("whatever") is ANONYMOUS


def test_each_tenant_is_listed_once():
    tenants = Tenants({hash_key("k1"): ACME, hash_key("k2"): ACME, hash_key("k3"): ZENO}, ANONYMOUS)
    assert list(tenants) == [ACME, ZENO, ANONYMOUS]


def test_a_hash_tells_keys_apart_and_shows_none():
    assert hash_key("secret") == hash_key("secret") != hash_key("Secret")
    assert hash_key("secret").startswith("sha256:") and len(hash_key("secret")) == 71
    assert "secret" not in hash_key("secret")
