"""What shows that somebody belongs to the cluster."""

import pickle
from pathlib import Path

import pytest

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import WorkersConfig, cluster_token
from chairlift.cluster.errors import ConfigError

OLD, NEW = "0" * 32, "1" * 32


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


def test_it_is_found_in_a_file_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OLD}\n")
    of_file = cluster_token(WorkersConfig(token_file=str(file)), {})
    of_environment = cluster_token(WorkersConfig(), {"CHAIRLIFT_CLUSTER_TOKEN": OLD})
    assert of_file.admits(of_environment.metadata()) and of_environment.admits(of_file.metadata())


@pytest.mark.parametrize("text", ["", " \n", "short", f"{OLD} short", "ä" * 40])
def test_what_would_not_do_is_refused_by_name_and_never_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"workers\.token_file") as in_file:
        cluster_token(WorkersConfig(token_file=str(file)), {})
    with pytest.raises(ConfigError, match="CHAIRLIFT_CLUSTER_TOKEN") as in_environment:
        cluster_token(WorkersConfig(), {"CHAIRLIFT_CLUSTER_TOKEN": text})
    for refusal in (in_file, in_environment):
        assert not text.strip() or text not in str(refusal.value)


def test_none_at_all_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"workers\.token_file.*CHAIRLIFT_CLUSTER_TOKEN"):
        cluster_token(WorkersConfig(), {})
    with pytest.raises(ConfigError, match=r"workers\.token_file: /nowhere: No such file"):
        cluster_token(WorkersConfig(token_file="/nowhere"), {})


def test_it_is_changed_without_a_moment_in_which_somebody_is_shut_out(tmp_path: Path) -> None:
    files = router, worker = tmp_path / "router", tmp_path / "worker"
    for file in files:
        file.write_text(OLD)
    shows, asks = (ClusterToken.from_file(file, "") for file in files)
    for words in (f"{OLD} {NEW}", f"{NEW} {OLD}", NEW):
        for file in (worker, router):  # each step, on one node after the other
            file.write_text(words)
            assert asks.admits(shows.metadata())
    assert not asks.admits(ClusterToken(OLD).metadata())
    worker.write_text("damaged")
    assert asks.admits(shows.metadata())
