from __future__ import annotations

import numpy as np
import torch

from chairlift.kernels.sampler import (
    CHOOSING,
    CHOOSING_WORDS,
    DeviceSampler,
    HostSampler,
    NumpySampler,
)


def choosing(rows):
    return np.array(
        [(row % 3 / 2, 0.01, 0.9, 7, 2**64 - 1 - row, row, 5 * row) for row in range(rows)],
        CHOOSING,
    )


def test_a_sampler_of_arrays_serves_tensors_on_the_cpu():
    random = np.random.default_rng(0)
    logits = random.standard_normal((6, 50)).astype(np.float32)
    rules = choosing(6)
    words = torch.from_numpy(rules.view(np.int64).reshape(6, CHOOSING_WORDS))
    tokens = torch.empty(6, dtype=torch.int64)
    host = HostSampler(NumpySampler())
    host.sample_into(torch.from_numpy(logits), words, out=tokens)
    assert tokens.tolist() == NumpySampler().sample(logits, rules)
    wanted = [(1, 3, 2), (4, 0, 0)]
    assert host.log_probabilities(torch.from_numpy(logits), wanted) == (
        NumpySampler().log_probabilities(logits, wanted)
    )


def test_the_two_kinds_of_sampler_can_be_told_apart():
    assert isinstance(HostSampler(NumpySampler()), DeviceSampler)
    assert not isinstance(NumpySampler(), DeviceSampler)
