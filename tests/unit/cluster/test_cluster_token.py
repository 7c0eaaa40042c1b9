"""What shows that somebody belongs to the cluster."""

import pickle

import pytest

from chairlift.cluster.cluster_token import ClusterToken


def test_a_call_with_the_token_is_admitted_also_by_a_copy_of_it() -> None:
    token = ClusterToken.new()
    copy = pickle.loads(pickle.dumps(token))
    assert token.admits(copy.metadata()) and copy.admits(token.metadata())


@pytest.mark.parametrize(
    "metadata",
    [None, (), (("other", "x"),), (("x-chairlift-cluster", ""),), (("x-chairlift-cluster", b"x"),)],
)
def test_a_call_without_it_is_not(metadata) -> None:
    assert not ClusterToken.new().admits(metadata)
    assert not ClusterToken.new().admits(ClusterToken.new().metadata())


def test_it_is_never_printed() -> None:
    token = ClusterToken.new()
    ((_, text),) = token.metadata()
    assert len(text) == 64
    assert text not in f"{token} {token!r} {[token]}"
