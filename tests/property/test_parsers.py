"""Each parser under damage: a few inputs here, as many as wanted by ``python -m fuzz``."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings

from fuzz.targets import TARGETS

QUICK = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers in damaged weights
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_damaged_input_is_refused_as_documented_or_accepted(target, tmp_path):
    inputs = target.inputs(tmp_path)
    with target.open(tmp_path) as feed:

        @QUICK
        @given(inputs)
        def each(data: bytes) -> None:
            with contextlib.suppress(*target.refusals):
                feed(data)

        each()
