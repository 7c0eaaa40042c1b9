from __future__ import annotations

import numpy as np
import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampling import likeliest, sample
from support.sampling_filters import FILTERS, OFF


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("ties", [False, True])
def test_shares_of_the_unit_interval_are_the_exact_probabilities(filters, ties):
    """Inverse transform: as many grid points choose a token as its probability says."""
    logits = 2 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    if ties:
        logits = logits.round()
    points = 4000
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    tokens = choose(logits.expand(points, -1), grid, **filters)
    shares = torch.bincount(tokens, minlength=50) / points
    expected = reference.sampling_distribution(logits, **({"temperature": 1.0} | filters))
    assert (shares - expected).abs().max() <= 1.01 / points
    assert not shares[expected == 0].any()


@pytest.mark.parametrize("filters", FILTERS)
def test_the_running_sum_is_that_of_the_reference(filters):
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        logits = 3 * torch.randn(30, generator=generator)
        number = torch.rand(1, generator=generator, dtype=torch.float64)
        probabilities = reference.sampling_distribution(logits, **({"temperature": 1.0} | filters))
        expected = reference.sample(probabilities, number.item())
        assert choose(logits[None], number, **filters).tolist() == [expected]


def test_a_vocabulary_of_ordinary_size():
    logits = 2 * torch.randn(49152, generator=torch.Generator().manual_seed(3))
    filters = {"temperature": 0.9, "top_k": 500, "top_p": 0.9, "min_p": 0.001}
    kept = reference.sampling_distribution(logits, **filters).nonzero()[:, 0]
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)[:-1]
    chosen = choose(logits.expand(2000, -1), grid, **filters)
    assert set(chosen.tolist()) <= set(kept.tolist())
    assert {chosen[0].item(), chosen[-1].item()} == {kept[0].item(), kept[-1].item()}


def test_frequencies_over_positions_follow_the_probabilities():
    """End to end with the counter-based numbers; a fixed seed makes the test exact."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 3.0])
    rows = 30_000
    seeds, zeros = np.full(rows, 1234, np.uint64), np.zeros(rows, np.uint64)
    numbers = torch.from_numpy(uniform(seeds, zeros, np.arange(rows, dtype=np.uint64)))
    counts = torch.bincount(choose(logits.expand(rows, -1), numbers), minlength=6)
    expected = rows * reference.sampling_distribution(logits, 1.0)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-6}])
def test_greedy_takes_the_first_of_the_largest(filters):
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [-5.0, -7.0, -5.0, -6.0]])
    for number in (0.0, 0.5, 1 - 2**-53):
        numbers = torch.full((2,), number, dtype=torch.float64)
        assert choose(logits, numbers, **filters).tolist() == [1, 0]


@pytest.mark.parametrize("filters", [{"top_k": 60}, {"top_p": 0.3}])
def test_of_many_equally_likely_tokens_the_first_are_kept(filters):
    grid = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1]
    tokens = choose(torch.ones(400, 200), grid, **filters)
    assert tokens.unique().tolist() == list(range(60))


def mixed_batch(rows, vocabulary):
    random = np.random.default_rng(4)
    logits = (3 * random.standard_normal((rows, vocabulary))).astype(np.float32)
    logits[::7, : vocabulary // 2] = logits[::7, vocabulary // 2 : vocabulary // 2 * 2]  # ties
    logits[3, 5] = np.nan
    settings = {
        "temperature": np.resize(np.array([0.0, 0.7, 1.0, 1.5], np.float32), rows),
        "top_k": np.resize([0, 40, 0, 3, 0], rows),
        "top_p": np.resize([1.0, 0.9, 1.0, 0.5, 1.0, 0.99999], rows),
        "min_p": np.resize(np.array([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0], np.float32), rows),
    }
    return logits, settings, random.random(rows)


def chosen(batch, rows):
    logits, settings, numbers = batch
    chosen = {name: values[rows] for name, values in settings.items()}
    return sample(logits[rows], **chosen, uniform=numbers[rows]).tolist()


@pytest.mark.parametrize("vocabulary", [255, 5003, 49152])
def test_a_row_does_not_depend_on_its_company(vocabulary):
    batch = mixed_batch(33, vocabulary)
    alone = [chosen(batch, [row])[0] for row in range(33)]
    for count in range(1, 34):
        assert chosen(batch, list(range(count))) == alone[:count]
    order = np.random.default_rng(5).permutation(33)
    assert chosen(batch, order) == [alone[row] for row in order]


def test_numbers_do_not_depend_on_threads_or_on_where_they_lie_in_memory():
    batch = mixed_batch(33, 49152)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(chosen(batch, slice(None)))
    finally:
        torch.set_num_threads(before)
    memory = np.empty(33 * 49152 + 16, np.float32)
    for offset in (1, 7, 13):
        moved = memory[offset : offset + 33 * 49152].reshape(33, 49152)
        moved[:] = batch[0]
        results.append(chosen((moved, *batch[1:]), slice(None)))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 512, 1000])
def test_the_ends_of_the_unit_interval_choose_the_first_and_the_last_possible_token(length):
    logits = torch.full((2, length), -torch.inf)
    logits[:, [length // 3, length - 1 - length // 5]] = 1.0
    numbers = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    ends = sorted({length // 3, length - 1 - length // 5})
    assert choose(logits, numbers).tolist() == [ends[0], ends[-1]]


@pytest.mark.parametrize("count", [1, 2, 5, 29, 30, 31])
def test_likeliest_are_the_first_of_a_stable_sort(count):
    values = np.random.default_rng(6).integers(0, 6, 30).astype(np.float32)
    values[3] = -np.inf
    expected = sorted(range(30), key=lambda i: (-values[i], i))[:count]
    assert likeliest(values, count).tolist() == sorted(expected)


def test_logits_are_left_as_they_were():
    logits = torch.randn(3, 20)
    before = logits.clone()
    choose(logits, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), top_k=3, top_p=0.5)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none_never_win_against_numbers(temperature):
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor(
        [
            [nan, -inf, 1.0, nan],
            [nan, 0.0, inf, 5.0],
            [-inf, nan, -inf, -1e30],
            [nan, 3.0, nan, nan],
        ]
    )
    numbers = torch.full((4,), 0.5, dtype=torch.float64)
    assert choose(logits, numbers, temperature=temperature).tolist() == [2, 2, 3, 1]


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_rows_without_any_number_count_as_all_alike(value):
    logits = torch.full((2, 4), value)
    numbers = torch.tensor([0.0, 0.99], dtype=torch.float64)
    assert choose(logits, numbers, temperature=0.0).tolist() == [0, 0]
    assert choose(logits, numbers, temperature=1.0).tolist() == [0, 3]


def test_a_tiny_temperature_overflows_to_the_largest_logit():
    logits = torch.tensor([[-3e38, 1.0, 3e38, 2.0]])
    assert choose(logits, torch.tensor([0.9], dtype=torch.float64), temperature=2e-5).tolist() == [
        2
    ]


def choose(logits, numbers, **filters):
    rows = len(logits)
    values = OFF | filters
    tokens = sample(
        logits.numpy(),
        np.full(rows, values["temperature"], np.float32),
        np.full(rows, values["top_k"], np.int64),
        np.full(rows, values["top_p"], np.float64),
        np.full(rows, values["min_p"], np.float32),
        uniform=numbers.numpy(),
    )
    return torch.from_numpy(tokens)
