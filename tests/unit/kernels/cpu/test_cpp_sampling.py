"""Tokens and log probabilities of the C++ kernels: as the reference says, and a row's bits its own.

Their uniform numbers cannot be given, but are known: those of ``kernels.philox``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.cpu.build import Processor
from chairlift.kernels.philox import uniform
from chairlift.kernels.sampler import CHOOSING, NumpySampler
from support.cpp_kernels import make_kernels
from support.sampling_filters import FILTERS, OFF

NEAR = 1e-6  # so close to a boundary, float32 may fall on the other side of it


@pytest.fixture(scope="module", params=Processor, ids=lambda kind: kind.name.lower())
def sampler(request):
    return make_kernels(request.param).sampler


@pytest.fixture(scope="module")
def usual():
    return make_kernels().sampler


def choosing(rows, seed=0, **filters):
    """A record for each row, at one position after the other."""
    records = np.zeros(rows, CHOOSING)
    for name, value in (OFF | filters).items():
        records[name] = value
    records["seed"], records["position"] = seed, np.arange(rows)
    return records


def numbers(records):
    return uniform(records["seed"], records["choice"], records["position"]).tolist()


def random_row(vocabulary, seed, scale=2.0, *, ties=False):
    row = scale * np.random.default_rng(seed).standard_normal(vocabulary)
    return (row.round() if ties else row).astype(np.float32)


def repeated(row, times):
    return np.ascontiguousarray(np.broadcast_to(row, (times, len(row))))


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocabulary", [1, 50, 300])
def test_tokens_are_those_of_the_reference(sampler, filters, ties, vocabulary):
    row, records = random_row(vocabulary, 1, ties=ties), choosing(300, **filters)
    probabilities = reference.sampling_distribution(torch.from_numpy(row), **OFF | filters)
    for number, token in zip(
        numbers(records), sampler.sample(repeated(row, 300), records), strict=True
    ):
        assert probabilities[token] > 0
        near = (reference.sample(probabilities, number + step) for step in (-NEAR, NEAR))
        assert token in range(next(near), next(near) + 1)


@pytest.mark.parametrize("vocabulary", [255, 5003, 49152])
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 30.0])
def test_tokens_are_those_of_numpy(usual, vocabulary, scale):
    """Where neither the last bits of weights nor those of sums decide; the seed is fixed."""
    filters = [*FILTERS, {"top_k": 500}, {"top_k": 3000, "top_p": 0.99}, {"temperature": 0.0}]
    rows = np.stack([random_row(vocabulary, seed, scale) for seed in range(len(filters))])
    records = np.concatenate([choosing(1, seed, **each) for seed, each in enumerate(filters)])
    assert usual.sample(rows, records) == NumpySampler().sample(rows, records)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 3.0])
@pytest.mark.parametrize("ties", [False, True])
def test_a_nucleus_of_many_tokens_is_that_of_the_reference(sampler, top_p, scale, ties):
    row = random_row(3000, 3, scale, ties=ties)
    kept = reference.sampling_distribution(torch.from_numpy(row), 1.0, top_p=top_p) > 0
    tokens = sampler.sample(repeated(row, 300), choosing(300, top_p=top_p))
    assert sum(not kept[token] for token in tokens) <= 1, "one at most stands at the boundary"


@pytest.mark.parametrize("top_k", [1, 24, 25, 500, 2999])
@pytest.mark.parametrize("ties", [False, True])
def test_the_tokens_that_remain_are_the_likeliest_and_all_of_them(sampler, top_k, ties):
    """At a temperature at which all of them are equally likely."""
    row = random_row(3000, 4, ties=ties)
    likeliest = set(np.argsort(-row, kind="stable")[:top_k].tolist())
    records = choosing(500, top_k=top_k, temperature=1e4)
    tokens = sampler.sample(repeated(row, 500), records)
    assert set(tokens) <= likeliest
    ranked = sorted(likeliest)
    for number, token in zip(numbers(records), tokens, strict=True):
        assert abs(ranked.index(token) - number * top_k) <= 1 + 0.002 * top_k


def test_frequencies_over_positions_follow_the_probabilities(sampler):
    row = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 3.0], np.float32)
    tokens = sampler.sample(repeated(row, 30_000), choosing(30_000, seed=1234))
    counts = torch.bincount(torch.tensor(tokens), minlength=6)
    expected = 30_000 * reference.sampling_distribution(torch.from_numpy(row), 1.0)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds


def test_numbers_are_those_of_philox(usual):
    """Of 2^16 equally likely tokens a number chooses the one that its first bits name."""
    random = np.random.default_rng(5)
    records = choosing(100)
    records["seed"] = random.integers(0, 1 << 64, 100, np.uint64)
    records["choice"] = random.integers(0, 1 << 32, 100, np.uint64)
    records["position"] = random.integers(0, 1 << 32, 100, np.uint64)
    tokens = usual.sample(np.zeros((100, 1 << 16), np.float32), records)
    assert tokens == [int(number * (1 << 16)) for number in numbers(records)]


def mixed_batch(rows, vocabulary):
    random = np.random.default_rng(6)
    logits = (3 * random.standard_normal((rows, vocabulary))).astype(np.float32)
    logits[::7, : vocabulary // 2] = logits[::7, vocabulary // 2 : vocabulary // 2 * 2]  # ties
    logits[3, 5], logits[4, 6], logits[5] = np.nan, np.inf, 0.0
    logits[6, 7:] = -np.inf
    records = choosing(rows, seed=7)
    records["temperature"] = np.resize([0.0, 0.7, 1.0, 1.5], rows)
    records["top_k"] = np.resize([0, 40, 0, 3, 0, 0, 700], rows)
    records["top_p"] = np.resize([1.0, 0.9, 1.0, 0.5, 1.0, 0.99999], rows)
    records["min_p"] = np.resize([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0], rows)
    wanted = [(row, (7 * row) % vocabulary, row % 30) for row in range(rows)]
    return logits, records, wanted


def answers(sampler, batch, rows):
    logits, records, wanted = batch
    logits = np.ascontiguousarray(logits[rows])
    asked = [(index, *wanted[row][1:]) for index, row in enumerate(rows)]
    tokens = sampler.sample(logits, records[rows])
    return list(zip(tokens, sampler.log_probabilities(logits, asked), strict=True))


@pytest.mark.parametrize("vocabulary", [255, 5003, 49152])
def test_a_row_does_not_depend_on_its_company(sampler, vocabulary):
    batch = mixed_batch(33, vocabulary)
    alone = [answers(sampler, batch, [row])[0] for row in range(33)]
    for count in (1, 2, 8, 32, 33):
        assert answers(sampler, batch, list(range(count))) == alone[:count]
    order = np.random.default_rng(8).permutation(33).tolist()
    assert answers(sampler, batch, order) == [alone[row] for row in order]


@pytest.mark.parametrize("vocabulary", [255, 49152])
def test_rows_are_the_same_on_any_number_of_threads(vocabulary):
    batch = mixed_batch(33, vocabulary)
    expected = answers(make_kernels(threads=1).sampler, batch, list(range(33)))
    for threads in (2, 3, 4):
        found = answers(make_kernels(threads=threads).sampler, batch, list(range(33)))
        assert found == expected


@pytest.mark.parametrize("vocabulary", [15, 127, 5003, 49152])
def test_rows_are_the_same_on_avx2_and_avx512(vocabulary):
    batch = mixed_batch(33, vocabulary)
    wide, narrow = (make_kernels(kind).sampler for kind in (Processor.AVX512, Processor.AVX2))
    assert answers(wide, batch, list(range(33))) == answers(narrow, batch, list(range(33)))


def test_rows_are_the_same_wherever_they_lie_in_memory(sampler):
    logits, records, wanted = mixed_batch(9, 5003)
    expected = answers(sampler, (logits, records, wanted), list(range(9)))
    memory = np.empty(logits.size + 16, np.float32)
    for offset in (1, 7, 13):
        moved = memory[offset : offset + logits.size].reshape(logits.shape)
        moved[:] = logits
        found = zip(
            sampler.sample(moved, records), sampler.log_probabilities(moved, wanted), strict=True
        )
        assert list(found) == expected
        assert np.array_equal(moved, logits, equal_nan=True), "logits are left as they were"


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-6}])
def test_greedy_takes_the_first_of_the_largest(sampler, filters):
    logits = np.zeros((3, 1000), np.float32)
    logits[0, [333, 666]], logits[1, [127, 128]], logits[2, -1] = 1.0, 1.0, 1.0
    assert sampler.sample(logits, choosing(3, **filters)) == [333, 127, 999]


@pytest.mark.parametrize("filters", [{"top_k": 60}, {"top_p": 0.3}])
def test_of_many_equally_likely_tokens_the_first_are_kept(sampler, filters):
    tokens = sampler.sample(np.ones((2000, 200), np.float32), choosing(2000, **filters))
    assert sorted(set(tokens)) == list(range(60))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none_never_win_against_numbers(sampler, temperature):
    nan, inf = np.nan, np.inf
    logits = np.array(
        [
            [nan, -inf, 1.0, nan],
            [nan, 0.0, inf, 5.0],
            [-inf, nan, -inf, -1e30],
            [nan, 3.0, nan, nan],
        ],
        np.float32,
    )
    assert sampler.sample(logits, choosing(4, temperature=temperature)) == [2, 2, 3, 1]


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 0.0, 3e38, -3e38])
@pytest.mark.parametrize("vocabulary", [4, 1000])
def test_rows_of_one_value_count_as_all_alike(sampler, value, vocabulary):
    logits = np.full((200, vocabulary), value, np.float32)
    assert sampler.sample(logits, choosing(200, temperature=0.0)) == [0] * 200
    for filters in ({}, {"top_p": 0.999999}, {"top_k": vocabulary - 1}):
        records = choosing(200, **filters)
        expected = [int(number * vocabulary) for number in numbers(records)]
        found = sampler.sample(logits, records)
        assert np.abs(np.subtract(found, expected)).max() <= 1
    ((chosen, top),) = sampler.log_probabilities(logits, [(7, 2, 2)])
    assert chosen == pytest.approx(-math.log(vocabulary))
    assert top == ((0, chosen), (1, chosen))


@pytest.mark.parametrize("temperature", [1e-5, 2e-5, 1e30, 3e38, np.inf])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 900}])
def test_any_temperature_gives_a_token(sampler, temperature, filters):
    logits = np.stack([random_row(1000, 9), random_row(1000, 10)])
    logits[0, :3], logits[1, 500:] = (-3e38, 3e38, -np.inf), -np.inf
    records = choosing(2, temperature=temperature, **filters)
    tokens = sampler.sample(logits, records)
    assert all(0 <= token < 1000 for token in tokens)
    if temperature < 1:
        assert tokens[0] == 1


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 49152])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_log_probabilities_are_those_of_log_softmax(sampler, vocabulary, scale):
    row = random_row(vocabulary, 11, scale)
    expected = reference.log_probabilities(torch.from_numpy(row).double())
    ((chosen, top),) = sampler.log_probabilities(row[None], [(0, vocabulary // 2, 20)])
    assert chosen == pytest.approx(expected[vocabulary // 2].item(), abs=1e-6)
    values, tokens = expected.topk(min(20, vocabulary))
    assert [token for token, _ in top] == tokens.tolist()
    assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-6)


@pytest.mark.parametrize("count", [1, 5, 24, 25, 3000])
def test_the_likeliest_fall_and_of_equals_the_lower_comes_first(sampler, count):
    row = random_row(3000, 12, ties=True)
    row[::3] = -np.inf
    ((_, top),) = sampler.log_probabilities(row[None], [(0, 0, count)])
    assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:count].tolist()


def test_masked_tokens_are_impossible_and_a_single_one_is_certain(sampler):
    logits = np.array([[-np.inf, 2, -np.inf]], np.float32)
    first, second = sampler.log_probabilities(logits, [(0, 1, 9), (0, 0, 0)])
    assert first == (0.0, ((1, 0.0), (0, -math.inf), (2, -math.inf)))
    assert second == (-math.inf, ())


@pytest.mark.parametrize(
    "logits", [[np.nan, 1, 2], [np.inf, 1, np.nan], [3e38, -3e38, -np.inf], [np.nan, -np.inf, 0]]
)
def test_log_probabilities_of_hostile_rows_are_those_of_numpy(sampler, logits):
    row = np.array([logits], np.float32)
    wanted = [(0, token, 3) for token in range(3)]
    expected = NumpySampler().log_probabilities(row, wanted)
    for (chosen, top), (other, others) in zip(
        sampler.log_probabilities(row, wanted), expected, strict=True
    ):
        assert chosen == pytest.approx(other)
        assert [token for token, _ in top] == [token for token, _ in others]
        assert [value for _, value in top] == pytest.approx([value for _, value in others])


def test_nothing_wanted_is_nothing_answered(usual):
    assert list(usual.log_probabilities(np.zeros((0, 5), np.float32), [])) == []
    assert usual.sample(np.zeros((0, 5), np.float32), choosing(0)) == []


def test_what_cannot_be_read_is_refused(usual):
    logits = np.zeros((2, 10), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        usual.sample(logits.T, choosing(10))
    with pytest.raises(ValueError, match="float64"):
        usual.sample(logits.astype(np.float64), choosing(2))
    with pytest.raises(ValueError, match="2 rows"):
        usual.sample(logits, choosing(3))
    for wanted in ((2, 0, 1), (0, 10, 1), (-1, 0, 1), (0, 0, -1)):
        with pytest.raises(IndexError):
            list(usual.log_probabilities(logits, [wanted]))
