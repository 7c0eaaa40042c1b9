import pytest

from chairlift.cluster.errors import ReplicaLost, SuspectRequest
from chairlift.router.failover import Failover, Fate, Stranded
from chairlift.router.retry_budget import RetryBudget


def failover(max_moves: int = 3, floor: int = 100, **fates: Fate) -> Failover:
    return Failover(max_moves, RetryBudget(0.0, floor), lambda replica_id: fates[replica_id])


def stranded(*lost: str, counts: bool = True) -> Stranded:
    return Stranded(lost, "tenant", "broke", counts)


def test_one_death_moves_a_request_and_two_end_it():
    rule = failover(a=Fate.DEAD, b=Fate.DEAD)
    assert rule.judge(stranded("a"), 0.0) is None
    assert isinstance(rule.judge(stranded("a", "b"), 0.0), SuspectRequest)


def test_replicas_that_are_back_had_not_died():
    rule = failover(a=Fate.BACK, b=Fate.DEAD, c=Fate.BACK)
    assert rule.judge(stranded("a", "b", "c"), 0.0) is None


def test_one_replica_that_is_lost_twice_is_one_death():
    assert failover(a=Fate.DEAD).judge(stranded("a", "a"), 0.0) is None


@pytest.mark.parametrize(
    ("lost", "open_"),
    [(("dead",), False), (("dead", "unknown"), True), (("dead", "dead2", "unknown"), False)],
)
def test_what_is_not_known_matters_only_if_it_decides(lost, open_):
    rule = failover(dead=Fate.DEAD, dead2=Fate.DEAD, unknown=Fate.UNKNOWN)
    assert rule.is_open(stranded(*lost)) is open_


def test_who_fails_for_certain_counts_each_time():
    rule = failover(a=Fate.BACK)
    assert rule.judge(stranded("", "a"), 0.0) is None
    assert isinstance(rule.judge(stranded("", "a", ""), 0.0), SuspectRequest)


def test_moves_are_bounded_by_request_and_by_tenant():
    rule = failover(max_moves=2, floor=3, a=Fate.BACK)
    assert rule.judge(stranded("a", "a"), 0.0) is None
    error = rule.judge(stranded("a", "a", "a"), 0.0)
    assert isinstance(error, ReplicaLost) and error.code == "moves_exhausted"
    assert rule.judge(stranded("a"), 0.0) is None
    assert rule.judge(stranded("a"), 0.0) is None
    error = rule.judge(stranded("a"), 0.0)
    assert isinstance(error, ReplicaLost) and error.code == "retry_budget"
    assert rule.judge(stranded("a", counts=False), 0.0) is None
    assert rule.judge(stranded("a"), 61.0) is None
