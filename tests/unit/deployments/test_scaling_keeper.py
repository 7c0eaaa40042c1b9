"""The Hub decides how many replicas there are, goes on after its death, and shows why."""

import json
from dataclasses import replace

from chairlift.cluster.autoscaling import ScalingPolicy
from chairlift.cluster.scaling import Fleet, Scaling
from chairlift.cluster.windows import Fold
from chairlift.deployments.cluster_metrics import cluster_page
from chairlift.deployments.scaling_keeper import ScalingKeeper
from support.figures import cluster_figures
from support.reports import T0, Router

POLICY = ScalingPolicy(min_replicas=0, max_replicas=3, first_token_target_s=1.0)


class Hub:
    """A keeper, and one router that reports what waits."""

    def __init__(self) -> None:
        self.now, self.fold, self.router = float(T0), Fold(), Router("one")
        self.keeper = ScalingKeeper(self.fold)

    def ask(self, fleet: Fleet, waiting: int = 0, oldest_s: float = 0.0) -> Scaling:
        self.now += 1
        self.router.queued = {"a": waiting} if waiting else {}
        self.router.oldest_s = {"a": oldest_s} if waiting else {}
        self.fold.put(self.router.report(), self.now)
        return self.keeper.decide(fleet, self.now)


def test_who_waits_where_there_is_none_has_one_started():
    hub = Hub()
    fleet = Fleet(POLICY, target=1, ready=1)
    hub.now += 400  # nobody has asked for anything
    asleep = hub.ask(replace(fleet, last=hub.ask(fleet)))
    assert asleep.decision.desired == 1
    hub.now += 400
    assert hub.ask(fleet).decision.desired == 0
    none = replace(fleet, target=0, ready=0)
    assert hub.ask(none).decision.desired == 0
    assert hub.ask(none, waiting=1, oldest_s=0.2).decision.desired == 1
    assert hub.keeper.wakes(hub.now)
    hub.ask(fleet)
    assert not hub.keeper.wakes(hub.now), "it is there"


def test_a_new_hub_goes_on_from_what_the_old_one_had_decided():
    old, new = Hub(), Hub()
    fleet = Fleet(POLICY, target=2, ready=1)
    told = old.ask(fleet, waiting=5, oldest_s=2.0)
    assert told.decision.desired == 2
    told = old.ask(replace(fleet, ready=2), waiting=5, oldest_s=2.0)
    assert (told.decision.desired, len(told.steps)) == (3, 1)
    new.now = old.now
    heard = new.ask(Fleet(POLICY, target=3, ready=2, last=told))
    assert (heard.decision.desired, heard.steps) == (3, told.steps)
    assert heard.state.up_at == told.state.up_at


def test_without_a_router_nothing_changes():
    keeper = ScalingKeeper(Fold())
    assert keeper.decide(Fleet(POLICY, target=2, ready=2), T0).decision.desired == 2


def test_it_is_seen_in_json_and_metrics_while_somebody_asks():
    hub = Hub()
    assert hub.keeper.view(hub.now) is None
    hub.ask(Fleet(POLICY, target=1, ready=1), waiting=5, oldest_s=2.0)
    view = json.loads(json.dumps(hub.keeper.view(hub.now)))
    assert (view["desired"], view["ready"], view["min"], view["max"]) == (2, 1, 0, 3)
    assert view["cause"] == "queue" and view["steps"][0]["reason"] == view["reason"]
    page, _ = cluster_page(cluster_figures() | {"autoscaling": view})
    text = page.decode()
    assert "chairlift_cluster_autoscaling_desired_replicas 2.0" in text
    assert 'chairlift_cluster_autoscaling_decisions_total{cause="queue",direction="up"} 1.0' in text
    assert 'chairlift_cluster_autoscaling_reading{name="waiting"} 5.0' in text
    assert 'name="work_s"' not in text, "it is not known"
    assert hub.keeper.view(hub.now + 60) is None
