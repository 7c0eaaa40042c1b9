from chairlift.evaluation.study_plan import ServiceTarget, SimulatedTarget
from chairlift.evaluation.study_quality import quality_of


def test_where_nothing_is_computed_there_is_no_perplexity() -> None:
    simulated = ServiceTarget(kind="service", config={"engine.simulated_step_ms": 5.0})
    assert quality_of(simulated) == {}
    assert quality_of(SimulatedTarget(kind="simulated")) == {}
