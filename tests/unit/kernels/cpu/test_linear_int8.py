"""Quantised products, to the bit: the same as the reference, on every kind of processor."""

from __future__ import annotations

import gguf
import pytest
import torch
from torch import Tensor

from chairlift.kernels import reference
from chairlift.kernels.cpu.build import Processor
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.quantised import Quantised
from support.cpp_kernels import make_kernels
from support.quantised_blocks import HALVES, SIZES, parts_of, random_matrix

ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 30, 100, 200]
KINDS = pytest.mark.parametrize("kind", SIZES)


@pytest.fixture(scope="module", params=Processor, ids=lambda kind: kind.name.lower())
def kernels(request):
    return make_kernels(request.param)


@KINDS
@pytest.mark.parametrize(("blocks", "outputs"), [(1, 1), (2, 16), (3, 40), (5, 75)])
def test_products_are_those_of_the_reference(kernels, kind, blocks, outputs):
    matrix = random_matrix(kind, outputs, blocks * SIZES[kind][0], seed=blocks)
    layer, parts = kernels.pack(matrix), parts_of(matrix)
    for rows in ROWS:
        x = inputs(rows, matrix.inputs, seed=rows)
        assert same(multiply(kernels, layer, x), reference.quantised_linear(x, *parts)), rows


@KINDS
def test_they_are_close_to_products_in_float64(kernels, kind):
    matrix = random_matrix(kind, 64, 768)
    x = torch.randn(20, 768, generator=torch.Generator().manual_seed(0))
    exact = x.double() @ decoded(matrix).double().T
    error = multiply(kernels, kernels.pack(matrix), x) - exact
    assert error.norm() < 0.01 * exact.norm()


@KINDS
def test_a_group_that_stands_out_is_as_exact_as_the_others(kernels, kind):
    """Its large number would leave its neighbours a few steps of rounding."""
    matrix = random_matrix(kind, 64, 768)
    layer, weight = kernels.pack(matrix), decoded(matrix).double()
    x = torch.randn(20, 768, generator=torch.Generator().manual_seed(0))
    errors = []
    for largest in (0.0, 100.0):
        x[:, 5] = largest
        errors.append((multiply(kernels, layer, x) - x.double() @ weight.T).std())
    assert errors[1] < 1.2 * errors[0]


@KINDS
def test_a_bias_and_what_is_there_already_are_added(kernels, kind):
    matrix = random_matrix(kind, 40, SIZES[kind][0])
    x, bias, out = inputs(13, matrix.inputs), torch.randn(40), torch.randn(13, 40)
    expected = out + (reference.quantised_linear(x, *parts_of(matrix)) + bias)
    kernels.add_linear(x, kernels.pack(matrix, bias=bias), out=out)
    assert same(out, expected)


def test_matrices_of_several_kinds_stand_one_under_the_other(kernels):
    matrices = [
        random_matrix("Q4_K", 40, 256),
        random_matrix("Q6_K", 17, 256),
        torch.randn(5, 256),
        random_matrix("Q6_K", 3, 256),
        random_matrix("Q6_K", 4, 256, seed=1),
    ]
    x, bias = inputs(9, 256), torch.randn(69)
    together = multiply(kernels, kernels.pack(*matrices, bias=bias), x)
    alone = [multiply(kernels, kernels.pack(matrix), x) for matrix in matrices]
    assert same(together, torch.cat(alone, dim=1) + bias)


@KINDS
def test_embedding_decodes_as_the_gguf_package_does(kernels, kind):
    matrix = random_matrix(kind, 50, 2 * SIZES[kind][0])
    tokens = torch.tensor([0, 49, 7, 7, 16])
    out = torch.empty(5, matrix.inputs)
    kernels.embed(tokens, kernels.pack(matrix), out=out)
    assert torch.equal(out, decoded(matrix)[tokens])


@KINDS
def test_the_largest_sums_do_not_overflow(kernels, kind):
    """All bits set, and the smallest codes, against the largest inputs."""
    for byte in (0, 255, 128):
        matrix = random_matrix(kind, 16, 256)
        scales = matrix.blocks.clone()
        matrix.blocks.fill_(byte)
        for start in range(0, matrix.blocks.shape[1], SIZES[kind][1]):
            for at in HALVES[kind]:
                place = slice(start + at, start + at + 2)
                matrix.blocks[:, place] = scales[:, place]
        for x in (torch.ones(3, 256), -torch.ones(3, 256)):
            found = multiply(kernels, kernels.pack(matrix), x)
            assert same(found, reference.quantised_linear(x, *parts_of(matrix)))


def test_no_rows(kernels):
    layer = kernels.pack(random_matrix("Q4_1", 5, 32))
    assert multiply(kernels, layer, torch.empty(0, 32)).shape == (0, 5)


def test_what_is_not_finite_stays_with_its_row(kernels):
    matrix = random_matrix("Q4_1", 20, 64)
    layer, x = kernels.pack(matrix), inputs(7, 64)
    clean = multiply(kernels, layer, x)
    x[2, 40], x[4, 3] = torch.inf, torch.nan
    spoilt = multiply(kernels, layer, x)
    assert spoilt[[2, 4]].isnan().all()
    others = [0, 1, 3, 5, 6]
    assert torch.equal(spoilt[others], clean[others])


@KINDS
def test_a_row_is_the_same_in_any_batch_and_on_any_number_of_threads(kind):
    matrix = random_matrix(kind, 115, 512)
    x = inputs(130, 512)
    one = make_kernels(threads=1)
    alone = torch.cat([multiply(one, one.pack(matrix), row[None]) for row in x])
    for threads in (1, 2, 4):
        kernels = make_kernels(threads=threads)
        layer = kernels.pack(matrix)
        for rows in range(1, 131, 1 if threads == 1 else 13):
            for first in {0, (130 - rows) // 2, 130 - rows}:
                batch = slice(first, first + rows)
                assert same(multiply(kernels, layer, x[batch]), alone[batch]), (rows, first)


def multiply(kernels: CppKernels, layer, x: Tensor) -> Tensor:
    out = torch.full((len(x), layer.outputs), torch.nan)
    kernels.linear(x, layer, out=out)
    return out


def inputs(rows: int, width: int, seed: int = 0) -> Tensor:
    """Numbers of many sizes; groups of zeros, of tiny or large ones, and with ties in rounding."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=random)
    x *= 10.0 ** torch.randint(-6, 3, (rows, 1), generator=random)
    kinds = torch.randint(20, (rows, width // 32), generator=random).repeat_interleave(32, 1)
    x[kinds == 0] = 0.0
    x[kinds == 1] *= 1e-33
    x[kinds == 3] *= 30.0
    ties = torch.randint(-127, 128, (rows, width), generator=random) + 0.5
    x[kinds == 2] = ties[kinds == 2]
    x[:, ::32] = torch.where(kinds[:, ::32] == 2, 127.0, x[:, ::32])
    return x


def decoded(matrix: Quantised) -> Tensor:
    values = gguf.quants.dequantize(matrix.blocks.numpy(), gguf.GGMLQuantizationType[matrix.kind])
    return torch.from_numpy(values)


def same(one: Tensor, other: Tensor) -> bool:
    """Every bit, the sign of a zero included."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
