"""Promise 1 on the real model: random schedules change no token and no bit of a log probability.

A short representative of ``python -m chairlift.evaluation.exactness --runs 500``.
"""

from __future__ import annotations

import pytest

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation.exactness import Report, study
from chairlift.workers.kernel_choice import MathChoice
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.tensor_parallel import Group
from support.cpp_kernels import make_kernels
from support.shared_ranks import by_ranks

RUNS = {"float32": 2, "int8": 4}
SEED = 2  # its first schedules preempt, and find prompts in the cache

try:
    MODEL = resolve_model("smollm2")
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.parametrize("math", ["float32", "int8"])
def test_random_schedules_change_nothing(math: MathChoice) -> None:
    spec = read_spec(MODEL)
    runner = make_runner(spec, Compute("cpp", math, threads=1), num_blocks=640, block_size=4)
    assert runner.exact
    report = study(runner, spec.vocab_size, RUNS[math], seed=SEED, tick=lambda: None)
    assert report.runs == RUNS[math]
    assert report.preemptions > 0 and report.cached_tokens > 0
    assert report.logprobs > report.tokens > 50
    assert report.exact, "\n".join(report.first_differences)


def test_nor_do_they_when_two_ranks_compute_it() -> None:
    spec = read_spec(MODEL)

    def on_rank(group: Group) -> Report:
        compute = Compute("cpp", "int8", threads=1)
        runner = make_runner(spec, compute, num_blocks=640, block_size=4, group=group)
        return study(runner, spec.vocab_size, 4, seed=1, tick=lambda: None)

    make_kernels()  # skips where they cannot be had
    first, second = by_ranks(2, on_rank)
    assert first == second
    assert first.tokens > 50 and first.exact, "\n".join(first.first_differences)
