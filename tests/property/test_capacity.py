"""Whatever is planned for, more of it never takes less."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.capacity import Plan, Question, Step, Targets, Wishes, make_plan, step_s
from chairlift.cluster.capacity_devices import DEVICES, efficiencies
from chairlift.cluster.capacity_model import Lengths, Load, given_figures

MODEL = given_figures(8.03e9, "bfloat16", (32, 32, 8, 128), 2.0)
DEVICE = DEVICES["h100"]
EXPECTED = efficiencies(DEVICE).expected
WISHES = Wishes(2048, 2 * 1024**3, price=1.0)

lengths = st.tuples(st.floats(1, 2000), st.floats(1, 4)).map(
    lambda drawn: Lengths(drawn[0], drawn[0] * drawn[1])
)
loads = st.builds(Load, st.floats(0.01, 50), lengths, lengths, st.floats(0, 0.9), st.floats(0.1, 5))


def plan(load: Load, wishes: Wishes = WISHES) -> Plan:
    question = Question(MODEL, DEVICE, load, Targets(2.0, 0.1), wishes)
    return make_plan(question, 1, EXPECTED)


@given(loads)
@settings(max_examples=60, deadline=None)
def test_twice_the_load_takes_at_least_as_many_replicas_and_at_most_twice_and_one(load: Load):
    once, twice = plan(load), plan(replace(load, rate=2 * load.rate))
    assert once.at_load <= twice.at_load <= 2 * once.at_load
    assert once.seats == twice.seats
    assert 0 < once.running <= once.seats
    assert once.load_s <= once.full_s * (1 + 1e-9)


@given(loads, st.floats(0, 0.5))
@settings(max_examples=60, deadline=None)
def test_head_room_never_costs_less_than_nothing(load: Load, headroom: float):
    assert plan(load, replace(WISHES, headroom=headroom)).at_load >= (
        plan(load, replace(WISHES, headroom=0.0)).at_load
    )


@given(st.floats(0, 500), st.floats(0, 8000), st.floats(0, 4000), st.floats(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_step_never_gets_shorter_by_what_is_added(
    decoding: float, context: float, prompt: float, more: float
):
    step = Step(decoding, context, prompt, prompt)
    seconds = step_s(MODEL, DEVICE, 1, EXPECTED, step)
    for name in ("decoding", "context", "prompt", "prompt_length"):
        changed = replace(step, **{name: getattr(step, name) + more})
        assert step_s(MODEL, DEVICE, 1, EXPECTED, changed) >= seconds * (1 - 1e-12)
