"""A study's runs on whole services, whose steps are simulated."""

from __future__ import annotations

import pytest

from chairlift.evaluation.study_run import Fate
from chairlift.evaluation.study_targets import open_target
from chairlift.evaluation.study_work import draw
from support.study_plans import DRAWN, plan_of, workload


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("via", ["http", "grpc"])
def test_arms_answer_alike_and_clients_give_up(via: str) -> None:
    source = DRAWN | {"rate": 20.0, "output": "uniform:4,32", "tenants": {"a": 1.0, "b": 3.0}}
    load = workload(source, requests=40, gives_up_after_s=1.5)
    target = {"kind": "service", "via": via, "config": {"engine": {"simulated_step_ms": 20}}}
    plan = plan_of(workloads={"load": load}, target=target)
    with open_target(plan) as runs:
        asked = draw(plan, "load", 0, runs.vocab_size, None)
        one, other = (runs.run(name, "load", 0, i, asked) for i, name in enumerate(plan.arms))
    for run in (one, other):
        assert [each.number for each in run.outcomes] == list(range(40))
        assert {each.fate for each in run.outcomes} <= {Fate.COMPLETED, Fate.GAVE_UP}
        done = [each for each in run.outcomes if each.fate is Fate.COMPLETED]
        assert done and all(len(each.tokens_s) == each.asked for each in done)
        assert all(each.sent_s is not None for each in run.outcomes)
    pairs = [
        (a.digest, b.digest)
        for a, b in zip(one.outcomes, other.outcomes, strict=True)
        if a.fate is b.fate is Fate.COMPLETED
    ]
    assert pairs and all(a == b for a, b in pairs)
