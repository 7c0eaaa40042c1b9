"""What Serve is told of the number of replicas."""

import pytest

from chairlift.cluster.config import ServiceConfig, load_config

# Serve has words for pydantic that will be gone one day.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


def test_without_autoscaling_it_is_a_number() -> None:
    from chairlift.deployments.autoscaling import replicas

    assert replicas(config(workers__replicas=3)) == {"num_replicas": 3}


def test_chairlifts_policy_has_bounds_and_no_delays_of_serves() -> None:
    from chairlift.deployments.autoscaling import replicas, scaling_policy
    from chairlift.deployments.scaling_policy import HubPolicy

    scaled = config(
        workers__autoscaling__min_replicas=0,
        workers__autoscaling__hold_s=7,
        telemetry__first_token_target_s=2.5,
    )
    told = replicas(scaled)["autoscaling_config"]
    assert (told.min_replicas, told.max_replicas, told.initial_replicas) == (0, 4, None)
    assert (told.upscale_delay_s, told.downscale_delay_s) == (0, 0)
    assert told.policy.policy_function == f"{HubPolicy.__module__}:{HubPolicy.__name__}"
    policy = scaling_policy(scaled)
    assert (policy.hold_s, policy.first_token_target_s) == (7, 2.5)
    HubPolicy(**told.policy.policy_kwargs)


def test_serves_own_rule_keeps_its_numbers() -> None:
    from chairlift.deployments.autoscaling import replicas
    from chairlift.deployments.scaling_policy import OngoingRequests

    told = replicas(config(workers__autoscaling__policy="ongoing-requests"))["autoscaling_config"]
    assert (told.upscale_delay_s, told.downscale_delay_s) == (30, 600)
    assert (told.target_ongoing_requests, told.look_back_period_s) == (2, 30)
    assert told.policy.policy_function == f"{OngoingRequests.__module__}:{OngoingRequests.__name__}"
