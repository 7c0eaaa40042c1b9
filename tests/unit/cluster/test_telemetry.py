import pickle
from dataclasses import fields

import pytest

from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.sketch import Sketch
from chairlift.cluster.telemetry import (
    Failure,
    History,
    ReplicaState,
    Report,
    Series,
    Tally,
    length_class,
)


@pytest.mark.parametrize(
    ("prompt_tokens", "name"),
    [(0, "≤128"), (128, "≤128"), (129, "≤512"), (2048, "≤2048"), (8192, "≤8192"), (8193, ">8192")],
)
def test_prompts_are_classed_by_length(prompt_tokens: int, name: str):
    assert length_class(prompt_tokens) == name


def test_merging_adds_every_field():
    one, other = Tally(), Tally()
    for number, each in enumerate(fields(Tally), start=1):
        for tally, value in ((one, number), (other, 100 * number)):
            if isinstance(getattr(tally, each.name), Sketch):
                getattr(tally, each.name).add(value)
            else:
                setattr(tally, each.name, value)
    one.merge(other)
    for number, each in enumerate(fields(Tally), start=1):
        merged = getattr(one, each.name)
        if isinstance(merged, Sketch):
            assert (merged.count, merged.total) == (2, 101 * number)
        else:
            assert merged == 101 * number
    assert other.started == 100
    assert other.slowdown.count == 1


def test_a_request_ends_in_one_of_four_ways():
    assert Tally(started=9, finished=1, cancelled=2, rejected=3, failed=2).ended == 8


def test_a_report_survives_a_journey():
    tally = Tally(started=1)
    tally.first_token.add(0.25)
    bucket = {Series("a", "normal", "≤128"): tally}
    state = ReplicaState(LoadReport(running=2), 0.1, live=True, seats=8)
    report = Report(
        router_id="r",
        model="m",
        seconds={7: bucket},
        tens={},
        minutes={},
        totals=bucket,
        weights={"a": 2.0},
        queued={"a": 1},
        oldest_s={"a": 0.5},
        replicas={"x": state},
        places=History(-1, {7: bucket}, {}, {}),
        failures=(Failure(7, "a", "queue_full", "id", "", rejected=True),),
        reasons={"queue_full": 1},
    )
    assert pickle.loads(pickle.dumps(report)) == report
