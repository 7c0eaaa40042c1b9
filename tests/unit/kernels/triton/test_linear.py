from __future__ import annotations

import pytest
import torch

from chairlift.kernels.triton.linear import Linear, count_splits, tile_for

# Rows, outputs, inputs: none a multiple of any tile, or all; one split or several.
SHAPES = [(1, 70, 130), (3, 16, 64), (5, 130, 1030), (70, 115, 700), (140, 129, 96)]


def random(seed, *shape, dtype, device):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("adds", [False, True])
def test_equals_the_reference(shape, adds, dtype, device, tolerance):
    rows, outputs, inputs = shape
    kind = {"dtype": dtype, "device": device}
    x, weight = random(0, rows, inputs, **kind), random(1, outputs, inputs, **kind)
    bias = random(2, outputs, **kind) if rows != 3 else None
    out = random(3, rows, outputs, **kind)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    expected += out.double() if adds else 0
    Linear(device)(x, weight, bias, out=out, adds=adds)
    scale = inputs**0.5
    torch.testing.assert_close(out.double() / scale, expected / scale, **tolerance)


def test_results_may_have_more_bits_than_inputs(device):
    kind = {"dtype": torch.float16, "device": device}
    x, weight = random(0, 2, 200, **kind), random(1, 30, 200, **kind)
    out = torch.empty(2, 30, device=device)
    Linear(device)(x, weight, None, out=out)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("outputs", "inputs"), [(70, 130), (40, 1100)])
def test_a_row_is_the_same_in_any_batch(outputs, inputs, dtype, device):
    """Alone in a small tile, in company in a large one; splits spread over programs or not."""
    kind = {"dtype": dtype, "device": device}
    x, weight = random(0, 300, inputs, **kind), random(1, outputs, inputs, **kind)
    linear = Linear(device)

    def product(first, last):
        out = torch.empty(last - first, outputs, device=device)
        linear(x[first:last].contiguous(), weight, None, out=out)
        return out

    whole = product(0, 300)
    for first, last in ((0, 1), (17, 18), (299, 300), (3, 19), (10, 90), (60, 129), (150, 299)):
        assert torch.equal(product(first, last), whole[first:last]), (first, last)


def test_many_rows_take_the_splits_one_after_the_other(device):
    """Enough tiles to fill a GPU: no program waits for another, and the bits are the same."""
    kind = {"dtype": torch.float32, "device": device}
    rows, outputs, inputs = 67 * 64, 16, 520
    assert count_splits(outputs, inputs) == 2
    x, weight = random(0, rows, inputs, **kind), random(1, outputs, inputs, **kind)
    linear, whole, few = Linear(device), *torch.empty(2, rows, outputs, device=device)
    linear(x, weight, None, out=whole)
    linear(x[:3].contiguous(), weight, None, out=few[:3])
    assert torch.equal(whole[:3], few[:3])


def test_how_the_inputs_are_cut_is_a_matter_of_the_weights():
    assert [count_splits(*shape) for shape in ((4096, 4096), (28672, 4096), (64, 128))] == [4, 1, 1]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert len({tile_for(rows, dtype).inputs for rows in range(1, 1000)}) == 1
