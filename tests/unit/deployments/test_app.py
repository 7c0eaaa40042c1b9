"""What is wrong with a configuration is said before Ray is asked for anything."""

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.deployments.app import build

TOKEN = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"engine": {"token_budgt": 1}}, r"engine\.token_budgt"),
        ({"http": {"port": "x"}}, r"http\.port"),
        ({"workers": {"token_file": "/nowhere"}}, r"workers\.token_file"),
        ({"guard": {"file": "/nowhere"}}, r"/nowhere"),
        ({"workers": "three"}, "workers"),
    ],
    ids=str,
)
def test_a_fault_is_named(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, object], field: str
) -> None:
    monkeypatch.setenv("CHAIRLIFT_CLUSTER_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match=field):
        build(args)


def test_without_a_token_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAIRLIFT_CLUSTER_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"openssl rand -hex 32"):
        build({})
