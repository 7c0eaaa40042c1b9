import pickle

import pytest

from chairlift.cluster.request_flow import RequestFlow
from chairlift.cluster.windows import Flow
from support.reports import T0


class Counted:
    """A router with so many requests open, for whole seconds."""

    def __init__(self, open_: int = 4) -> None:
        self.open = open_
        self.open_s = self.spent_s = self.age_s = 0.0
        self.extra_open = 0

    def pass_second(self, spent: float = 1.0) -> None:
        """Half of the time is of requests that end, half makes those that do not older."""
        self.open_s += self.open
        self.spent_s += spent * self.open / 2
        self.age_s += self.open / 2

    def flow(self) -> Flow:
        return Flow(self.open + self.extra_open, self.open, self.open_s, self.age_s, self.spent_s)


def told(flow: RequestFlow, seconds: int, begin: int = 0, **routers: Counted) -> float:
    for second in range(begin, begin + seconds):
        for each in routers.values():
            each.pass_second()
        flow.observe({name: each.flow() for name, each in routers.items()}, T0 + second)
    return flow.contradiction().value


def test_what_adds_up_is_no_contradiction():
    flow = RequestFlow()
    assert told(flow, 120, one=Counted(), other=Counted(9)) == 0


def test_time_that_went_missing_shows():
    flow, one, other = RequestFlow(), Counted(), Counted()
    assert told(flow, 60, one=one, other=other) == 0
    one.open_s += 100
    assert told(flow, 20, 60, one=one, other=other) == pytest.approx(100 / 340)
    assert flow.contradiction().where == "one"
    assert told(flow, 40, 80, one=one, other=other) == 0, "it was long ago"


def test_requests_that_went_missing_show_at_once():
    flow, one = RequestFlow(), Counted(6)
    told(flow, 10, one=one)
    one.extra_open = 6
    assert told(flow, 1, 10, one=one) == 0.5


@pytest.mark.parametrize("open_", [0, 1])
def test_where_hardly_anything_is_open_nothing_is_said(open_: int):
    flow, one = RequestFlow(), Counted(open_)
    one.extra_open = 2 - open_
    told(flow, 5, one=one)
    one.open_s += 3
    assert told(flow, 4, 5, one=one) == 0


def test_a_router_that_was_idle_for_long_is_looked_at_from_then_on():
    flow, one = RequestFlow(), Counted(0)
    assert told(flow, 300, one=one) == 0
    one.open = 4
    assert told(flow, 20, 300, one=one) == 0
    one.open_s += 1000
    assert told(flow, 5, 320, one=one) > 0.5


def test_routers_that_do_not_say_are_left_out():
    flow = RequestFlow()
    for second in range(60):
        flow.observe({"one": Flow(None, 5, 10.0 * second, None, 0.0)}, T0 + second)
    assert flow.contradiction().value == 0


def test_routers_that_go_are_forgotten():
    flow, one = RequestFlow(), Counted()
    told(flow, 40, one=one)
    one.open_s += 1000
    told(flow, 1, 40, one=one)
    assert flow.contradiction().value > 0.5
    flow.observe({}, T0 + 42)
    assert flow.contradiction().value == 0
    assert len(pickle.dumps(flow)) < 200
