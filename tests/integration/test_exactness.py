"""Promise 1 on the real model: random schedules change no token and no bit of a log probability.

A short representative of ``python -m chairlift.evaluation.exactness --runs 500``.
"""

from __future__ import annotations

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation.exactness import study
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.weights import load_weights

RUNS = 12

try:
    MODEL = resolve_model("smollm2")
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_random_schedules_change_nothing() -> None:
    spec = read_spec(MODEL)
    runner = ModelRunner(
        spec,
        load_weights(spec, lambda _: None),
        num_blocks=640,
        block_size=4,
        kernels="cpp",
        threads=1,
    )
    assert runner.exact
    report = study(runner, spec.vocab_size, RUNS, seed=1, tick=lambda: None)
    assert report.runs == RUNS
    assert report.preemptions > 0 and report.cached_tokens > 0
    assert report.logprobs > report.tokens > 200
    assert report.exact, "\n".join(report.first_differences)
