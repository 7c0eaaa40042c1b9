"""How serve reaches its own routers."""

import pytest

from chairlift.cluster.config import load_config
from chairlift.deployments.self_look import OwnRouters, own_url
from support.figures_server import figures_server

TLS = {"certificate": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_the_address_is_one_of_this_machine(host, url):
    assert own_url(load_config(overrides={"http.host": host}, environment={})) == url


def test_with_tls_the_address_says_so():
    config = load_config(overrides={"http.tls": TLS}, environment={})
    assert own_url(config) == "https://127.0.0.1:8000"


def test_a_router_that_answers_says_how_many_replicas_are_live():
    with figures_server() as url:
        port = int(url.rsplit(":", 1)[1])
        config = load_config(overrides={"http.port": port}, environment={})
        assert OwnRouters().ready_replicas(config) == 1
        assert OwnRouters().guard_view(config) == {"mode": "off"}


@pytest.mark.parametrize("overrides", [{"http.port": 1}, {"http.tls": TLS}])
def test_where_nobody_answers_nothing_is_ready(overrides):
    config = load_config(overrides=overrides, environment={})
    assert OwnRouters().ready_replicas(config) == 0
    assert OwnRouters().guard_view(config) is None
