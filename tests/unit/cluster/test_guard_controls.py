import math

import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard_state import (
    Rung,
)
from chairlift.cluster.protocol import Batching, Controls, Priority
from support.watches import Watch


@pytest.mark.parametrize("rung", Rung)
def test_each_rung_keeps_what_the_ones_below_it_do(rung: Rung):
    watch = Watch()
    watch.guard.set("ann", watch.now, rung, {})
    controls = watch.guard.state.controls
    assert controls.hedging == (rung < Rung.NO_SPECULATION)
    small = rung >= Rung.SMALLER_STEPS
    assert (controls.token_budget, controls.max_sequences) == ((256, 28) if small else (512, 32))
    refused = rung >= Rung.REFUSE_BEST_EFFORT
    assert controls.lowest is (Priority.STANDARD if refused else Priority.BATCH)
    assert controls.demote_late == (rung >= Rung.DEMOTE_LATE)
    assert controls.reserve == (rung >= Rung.RESERVE)
    assert controls.affinity == (rung < Rung.RESERVE)
    static = rung >= Rung.STATIC
    assert controls.batching is (Batching.STATIC if static else Batching.CONTINUOUS)
    assert controls.admit == (0 if rung is Rung.STOP else 1)


def test_what_is_stricter_already_stays():
    base = Controls(
        token_budget=1,
        max_sequences=1,
        batching=Batching.STATIC_SORTED,
        lowest=Priority.INTERACTIVE,
        admit=0.3,
        fair=False,
    )
    watch = Watch(base=base)
    watch.guard.set("ann", watch.now, Rung.PAGE, {})
    controls = watch.guard.state.controls
    assert (controls.token_budget, controls.max_sequences, controls.admit) == (1, 1, 0.3)
    assert controls.batching is Batching.STATIC_SORTED
    assert controls.lowest is Priority.INTERACTIVE
    assert controls.fair, "tenants are served by weight under load"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batching", "magic"),
        ("token_budget", 0),
        ("token_budget", 513),
        ("token_budget", True),
        ("token_budget", 1.5),
        ("max_sequences", 33),
        ("max_sequences", "many"),
        ("reserve", "perhaps"),
        ("lowest", "urgent"),
        ("lowest", 3),
        ("lowest", True),
        ("admit", 1.01),
        ("admit", -0.1),
        ("admit", math.nan),
        ("admit", False),
        ("version", 7),
        ("reason", "because"),
        ("by_person", True),
    ],
)
def test_a_wrong_override_is_refused_by_name(field: str, value: object):
    watch = Watch()
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as caught:
        watch.guard.set("ann", watch.now, Rung.PAGE, {field: value})
    assert caught.value.param == field
    assert "\n" not in caught.value.message
    assert watch.guard.state.version == 0


def test_a_limit_that_was_set_for_larger_replicas_is_lowered():
    old = Watch()
    old.guard.set("ann", old.now, None, {"token_budget": 400})
    new = Watch(base=Controls(token_budget=64))
    new.guard.adopt(old.guard.state)
    assert new.guard.state.controls.token_budget == 64
