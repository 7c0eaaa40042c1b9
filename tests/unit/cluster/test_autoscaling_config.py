"""Autoscaling is off unless it is asked for, and what contradicts itself is refused."""

import pytest

from chairlift.cluster.config import load_config
from chairlift.cluster.errors import ConfigError


def workers(**autoscaling: object) -> dict[str, object]:
    return {f"workers.autoscaling.{name}": value for name, value in autoscaling.items()}


def test_without_it_the_number_is_fixed():
    fixed = load_config(overrides={"workers.replicas": 3}, environment={}).workers
    assert (fixed.autoscaling, fixed.least, fixed.most) == (None, 3, 3)


def test_a_bound_alone_turns_it_on():
    scaled = load_config(overrides=workers(min_replicas=0), environment={}).workers
    assert (scaled.least, scaled.most) == (0, 4)
    environment = {"CHAIRLIFT__WORKERS__AUTOSCALING__MAX_REPLICAS": "9"}
    assert load_config(environment=environment).workers.most == 9


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (workers(min_replicas=5), "max_replicas is 4, less than min_replicas: 5"),
        (workers(low_load=0.9), "low_load is 0.9, and has to be less than target_load: 0.8"),
        (workers(max_replicas=0), "workers.autoscaling.max_replicas: "),
        (workers(max_replica=2), "did you mean workers.autoscaling.max_replicas?"),
        (workers(policy="guess"), "workers.autoscaling.policy: "),
        (workers(max_replica_hours_per_day=20), "min_replicas alone take 24"),
        (
            {**workers(max_replicas=2), "workers.replicas": 2},
            "workers: set either replicas or autoscaling, not both",
        ),
        (
            {**workers(max_replicas=2), "telemetry.enabled": False},
            "workers.autoscaling goes by telemetry, which is not enabled",
        ),
        (workers(max_price_per_hour=3), "needs telemetry.price_per_replica_hour"),
        (
            {
                **workers(min_replicas=2, max_price_per_hour=3),
                "telemetry.price_per_replica_hour": 2,
            },
            "does not pay for 2 at 2 each",
        ),
    ],
)
def test_a_contradiction_is_named(overrides: dict[str, object], said: str):
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides, environment={})
    assert said in str(error.value)
    assert "\n" not in str(error.value)
