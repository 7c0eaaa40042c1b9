from __future__ import annotations

import gc

import pytest
import torch

from chairlift.kernels.cpu.memory import Memory


def test_tensors_are_zeros_that_begin_at_a_cache_line_and_do_not_overlap() -> None:
    memory = Memory()
    tensors = [memory.zeros(*shape) for shape in [(3, 5), (1,), (2, 64, 7), (4 << 20,), (9,)]]
    for value, tensor in enumerate(tensors, start=1):
        assert tensor.data_ptr() % 64 == 0 and tensor.is_contiguous()
        assert not tensor.any()
        tensor.fill_(value)
    for value, tensor in enumerate(tensors, start=1):
        assert (tensor == value).all()


def test_more_than_a_slab_is_had_at_once() -> None:
    memory = Memory()
    large = memory.zeros(10 << 20)
    large[-1] = 1.0
    assert large.sum() == 1.0


def test_a_tensor_outlives_the_memory_that_it_came_from() -> None:
    tensor = Memory().zeros(1000)
    gc.collect()
    tensor += 1
    assert tensor.sum() == 1000


@pytest.mark.parametrize("refused", [False, True])
def test_it_works_without_large_pages(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    module = "chairlift.kernels.cpu.memory.mmap.MADV_HUGEPAGE"
    if refused:
        monkeypatch.setattr(module, -1, raising=False)  # no such advice
    else:
        monkeypatch.delattr(module, raising=False)
    assert torch.equal(Memory().zeros(8), torch.zeros(8))
