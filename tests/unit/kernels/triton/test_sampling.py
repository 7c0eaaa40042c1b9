"""Token for token what ``kernels.sampling`` chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chairlift.kernels import logprobs
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampler import CHOOSING
from chairlift.kernels.sampling import sample
from chairlift.kernels.triton import sampling
from chairlift.kernels.triton.sampling import TritonSampler
from support.sampling_filters import FILTERS, OFF

# The interpreter's numpy warns of the two ends of float32, a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")


def choosing(rows, **filters):
    values = OFF | filters
    by = np.zeros(rows, CHOOSING)
    for name in ("temperature", "min_p", "top_p", "top_k"):
        by[name] = values[name]
    by["seed"] = 0x123456789ABCDEF0 + np.arange(rows, dtype=np.uint64) // 3
    by["choice"] = np.arange(rows) % 3
    by["position"] = 7 * np.arange(rows)
    return by


def on_the_host(logits, by):
    numbers = uniform(by["seed"], by["choice"], by["position"])
    rules = (by[name] for name in ("temperature", "top_k", "top_p", "min_p"))
    return sample(logits.numpy(), *rules, uniform=numbers).tolist()


def check(device, logits, by):
    found = TritonSampler().sample(logits.to(device), by)
    assert found.dtype == torch.int64 and found.tolist() == on_the_host(logits, by)


@pytest.fixture
def short_stretches(monkeypatch):
    """So that a vocabulary of some hundred tokens has several, the last not whole."""
    monkeypatch.setattr(sampling, "_STRETCH", 64)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_every_rule(filters, ties, device, short_stretches):
    logits = 3 * torch.randn(2, 100, generator=torch.Generator().manual_seed(1))
    check(device, logits.round() if ties else logits, choosing(2, **filters))


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_rules_of_their_own(seed, device):
    random = np.random.default_rng(seed)
    rows, vocabulary = 4, int(random.integers(1, 400))
    logits = torch.from_numpy((3 * random.standard_normal((rows, vocabulary))).astype(np.float32))
    if seed % 2:
        logits = logits.round()
    by = choosing(rows)
    by["temperature"] = random.choice([0.0, 0.3, 1.0, 2.0], rows)
    by["top_k"] = random.choice([0, 1, 5, 40, 1000], rows)
    by["top_p"] = random.choice([0.1, 0.6, 0.95, 1.0], rows)
    by["min_p"] = random.choice([0.0, 0.0, 0.02, 0.3], rows)
    by["seed"] = random.integers(0, 2**64, rows, dtype=np.uint64)
    check(device, logits, by)


def test_a_vocabulary_of_ordinary_size(device):
    logits = 2 * torch.randn(1, 33000, generator=torch.Generator().manual_seed(3))
    check(device, logits, choosing(1, temperature=0.9, top_k=500, top_p=0.9, min_p=0.001))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none(temperature, device):
    nan, inf = math.nan, math.inf
    logits = torch.tensor(
        [
            [nan, -inf, 1.0, nan, 0.5],
            [nan, 0.0, inf, 5.0, inf],
            [-inf, nan, -inf, -1e30, -inf],
            [nan, nan, nan, nan, nan],
            [-inf, -inf, -inf, -inf, -inf],
            [inf, inf, inf, inf, inf],
            [-inf, 2.0, -inf, -0.0, 0.0],
        ]
    )
    check(device, logits, choosing(7, temperature=temperature))
    check(device, logits, choosing(7, temperature=temperature, top_k=2, top_p=0.9))


@pytest.mark.parametrize("filters", [{"top_k": 30}, {"top_p": 0.3}, {"top_k": 30, "top_p": 0.5}])
def test_of_many_equally_likely_tokens_the_first_are_kept(filters, device, short_stretches):
    by = choosing(4, **filters)
    logits = torch.full((4, 100), -1.5)
    check(device, logits, by)
    assert TritonSampler().sample(logits.to(device), by).max() < 30


def test_greedy_takes_the_first_of_the_largest(device, short_stretches):
    logits = torch.zeros(2, 300)
    logits[0, [130, 170, 299]] = 2.0
    logits[1, [63, 64]] = 1.0
    assert TritonSampler().sample(logits.to(device), choosing(2, temperature=0.0)).tolist() == [
        130,
        63,
    ]


def test_company_changes_nothing(device):
    logits = 2 * torch.randn(3, 100, generator=torch.Generator().manual_seed(4)).to(device)
    by = choosing(3, top_p=0.9, top_k=50)
    together = TritonSampler().sample(logits, by).tolist()
    alone = [TritonSampler().sample(logits[[i]], by[[i]]).item() for i in range(3)]
    assert alone == together


def test_logarithms_of_probabilities(device, short_stretches):
    logits = 3 * torch.randn(4, 150, generator=torch.Generator().manual_seed(5))
    logits[1] = logits[1].round()
    logits[2, 7], logits[3, :9] = math.nan, -math.inf
    wanted = [(0, 3, 5), (1, 149, 20), (2, 7, 1), (3, 0, 0), (3, 0, 1000), (1, 0, 3)]
    found = TritonSampler().log_probabilities(logits.to(device), wanted)
    for (row, token, count), (value, likely) in zip(wanted, found, strict=True):
        expected = logprobs.log_probabilities(logits[row].numpy(), token, count)
        assert value == pytest.approx(expected[0], abs=1e-6)
        assert [token for token, _ in likely] == [token for token, _ in expected[1]]
        assert [v for _, v in likely] == pytest.approx([v for _, v in expected[1]], abs=1e-6)


def test_what_is_not_there_is_refused(device):
    with pytest.raises(IndexError, match="outside 2 rows of 9 tokens"):
        list(TritonSampler().log_probabilities(torch.zeros(2, 9, device=device), [(2, 0, 0)]))
