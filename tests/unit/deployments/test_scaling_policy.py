"""Serve's controller is never held up, and without a word from the Hub nothing changes."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.cluster.autoscaling import LoadReading, ScalingPolicy
from chairlift.cluster.scaling import Fleet, Scaling, scaled
from chairlift.deployments import scaling_policy
from chairlift.deployments.scaling_policy import ANSWER_S, HubPolicy, OngoingRequests

# Serve, which one test needs, has words for pydantic that will be gone one day.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

POLICY = ScalingPolicy(min_replicas=1, max_replicas=4, first_token_target_s=1.0)
BUSY = LoadReading(ready=1, arrivals_per_s=20.0, seat_s=1.0, room=10)


class Cluster:
    """Ray with a Hub in it that answers when a test lets it; in place of the policy's ``ray``."""

    def __init__(self) -> None:
        self.now, self.there, self.looks = 0.0, True, 0
        self.asked: list[Fleet] = []
        self.answer: Any = None
        self.scale = SimpleNamespace(remote=self._remote)

    def _remote(self, fleet: Fleet) -> str:
        self.asked.append(fleet)
        return "answer"

    def get_actor(self, name: str, namespace: str) -> "Cluster":
        self.looks += 1
        if not self.there:
            raise ValueError("no such actor")
        return self

    def wait(self, answers: list[str], timeout: float) -> tuple[list[str], list[str]]:
        assert timeout == 0
        return (answers, []) if self.answer is not None else ([], answers)

    def get(self, answer: str) -> Scaling:
        taken, self.answer = self.answer, None
        if isinstance(taken, Exception):
            raise taken
        assert isinstance(taken, Scaling)
        return taken

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(scaling_policy, "ray", made)
    monkeypatch.setattr(scaling_policy, "time", made)
    return made


def context(target: int = 1, ready: int = 1) -> SimpleNamespace:
    """As Serve makes one for each call."""
    config = SimpleNamespace(
        look_back_period_s=30.0,
        get_target_ongoing_requests=lambda: 5.0,
        get_upscaling_factor=lambda: 1.0,
    )
    return SimpleNamespace(
        target_num_replicas=target,
        current_num_replicas=ready,
        config=config,
        policy_state={},
        total_num_requests=0.0,
    )


def decision(target: int, reading: LoadReading = BUSY) -> Scaling:
    return scaled(Fleet(POLICY, target, target), None, reading, 1000.0)


def test_the_hubs_decision_is_taken_when_it_is_there(cluster: Cluster) -> None:
    policy = HubPolicy(**asdict(POLICY))
    assert policy(context()) == (1, {})  # type: ignore[arg-type]
    assert cluster.asked == [Fleet(POLICY, 1, 1)]
    cluster.now += 5
    assert policy(context()) == (1, {}), "it is not waited for"  # type: ignore[arg-type]
    assert len(cluster.asked) == 1
    cluster.answer = decision(1)
    assert policy(context()) == (3, {})  # type: ignore[arg-type]
    assert cluster.asked[1].last is not None, "it is told what was decided"
    cluster.now += ANSWER_S
    assert policy(context(3)) == (3, {})  # type: ignore[arg-type]
    cluster.now += ANSWER_S
    assert policy(context(2)) == (2, {}), "that is long ago"  # type: ignore[arg-type]


def test_a_hub_that_is_not_there_is_looked_for_now_and_then(cluster: Cluster) -> None:
    cluster.there, policy = False, HubPolicy(**asdict(POLICY))
    for _ in range(30):
        assert policy(context(2)) == (2, {})  # type: ignore[arg-type]
        cluster.now += 0.1
    assert cluster.looks == 2
    cluster.there = True
    cluster.now += 2
    policy(context(2))  # type: ignore[arg-type]
    assert len(cluster.asked) == 1


def test_a_hub_that_dies_or_is_silent_is_looked_for_anew(cluster: Cluster) -> None:
    policy = HubPolicy(**asdict(POLICY))
    policy(context(2))  # type: ignore[arg-type]
    cluster.answer = RuntimeError("the actor died")
    cluster.now += 3
    assert policy(context(2)) == (2, {})  # type: ignore[arg-type]
    assert (cluster.looks, len(cluster.asked)) == (2, 2)
    cluster.now += ANSWER_S + 1
    policy(context(2))  # type: ignore[arg-type]
    assert (cluster.looks, len(cluster.asked)) == (3, 3)


def test_serves_own_rule_counts_requests_in_the_mean_of_its_look_back(cluster: Cluster) -> None:
    policy = OngoingRequests(**asdict(POLICY))
    policy(context())  # type: ignore[arg-type]
    cluster.answer = decision(1, LoadReading(ready=1, running=12, waiting=8))
    assert policy(context())[0] == 4  # type: ignore[arg-type]  # 20 / 5
    cluster.now += 31
    assert policy(context())[0] == 1, "what is known is old"  # type: ignore[arg-type]
    cluster.answer = decision(1, LoadReading(ready=1, running=6))
    assert policy(context())[0] == pytest.approx(1.2)  # type: ignore[arg-type]
