from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
import torch

from chairlift.kernels.cpu.memory import Memory, large_pages

THP = Path("/sys/kernel/mm/transparent_hugepage")


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


def test_large_pages_are_asked_for_where_linux_gives_them() -> None:
    """A mapping that can be inherited is shared memory, which gets none on most systems."""
    pages = large_pages(5 << 20)
    assert len(pages) == 6 << 20 and not pages.any()
    start = pages.ctypes.data
    assert start % (2 << 20) == 0
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line):
                inside = int(match[1], 16) <= start < int(match[2], 16)
                if inside:
                    assert match[3] == "rw-p"
            elif inside and line.startswith("VmFlags"):
                assert "hg" in line.split() or not THP.exists()
                return
    pytest.fail("the mapping is not listed")


@pytest.mark.parametrize("refused", [False, True])
def test_it_works_without_large_pages(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    module = "chairlift.kernels.cpu.memory.mmap.MADV_HUGEPAGE"
    if refused:
        monkeypatch.setattr(module, -1, raising=False)  # no such advice
    else:
        monkeypatch.delattr(module, raising=False)
    assert torch.equal(Memory().zeros(8), torch.zeros(8))
