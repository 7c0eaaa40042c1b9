"""Ranks as threads of one process: each maps the file by itself, as processes do."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from chairlift.cluster.config import cache_folder
from chairlift.kernels.cpu.build import CompilerMissing, build
from chairlift.kernels.cpu.library import GroupLibrary

ROOM = 5  # floats, so that nearly everything goes in several pieces
DIFFER = -1


@pytest.fixture(scope="module")
def library():
    try:
        return build(cache_folder())
    except CompilerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(params=[2, 3, 5])
def groups(request, library, tmp_path):
    size = request.param
    seats = [GroupLibrary(library, str(tmp_path / "group"), n, size, ROOM) for n in range(size)]
    assert each(seats, lambda rank: seats[rank].call("join", 10.0)) == [0] * size
    return seats


def each(groups, function):
    """What it returns for each rank, all at once."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(function, range(len(groups))))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 503])
def test_sums_are_made_in_order_of_rank(groups, count):
    torch.manual_seed(count)
    parts = torch.randn(len(groups), count) * torch.exp(4 * torch.randn(len(groups), count))
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    found = parts.clone()
    codes = each(groups, lambda rank: groups[rank].call("sum", found[rank].data_ptr(), count))
    assert codes == [0] * len(groups)
    assert all(torch.equal(own, expected) for own in found)


@pytest.mark.parametrize("rows", [1, 4])
def test_columns_of_different_widths_are_gathered(groups, rows):
    widths = [7, 0, 1, 12, 3][: len(groups)]
    total = sum(widths)
    parts = [torch.randn(rows, width) for width in widths]
    found = torch.zeros(len(groups), rows, total)

    def gather(rank):
        part = parts[rank].data_ptr(), rows, widths[rank]
        return groups[rank].call("gather", *part, found[rank].data_ptr(), total)

    assert each(groups, gather) == [0] * len(groups)
    assert all(torch.equal(own, torch.cat(parts, dim=1)) for own in found)


@pytest.mark.parametrize("length", [0, 1, 19, 20, 21, 1000])
def test_messages_of_any_length_are_shared(groups, length):
    message = bytes(n % 251 for n in range(length))

    def share(rank):
        size = ctypes.c_long(length if rank == 0 else 0)
        code = groups[rank].call("share", message if rank == 0 else b"", ctypes.byref(size))
        return code, message if rank == 0 else groups[rank].message(size.value)

    assert each(groups, share) == [(0, message)] * len(groups)


def test_a_difference_is_seen_by_all_and_stays(groups):
    assert each(groups, lambda rank: groups[rank].call("agree", 2**64 - 1)) == [0] * len(groups)
    codes = each(groups, lambda rank: groups[rank].call("agree", min(rank, 1)))
    assert codes == [DIFFER] * len(groups)
    assert groups[1].call("agree", 0) == DIFFER


def test_widths_that_do_not_make_the_whole_are_a_difference(groups):
    part, out = torch.zeros(1, 2), torch.zeros(len(groups), 2 * len(groups) + 1)
    total = out.shape[1]

    def gather(rank):
        return groups[rank].call("gather", part.data_ptr(), 1, 2, out[rank].data_ptr(), total)

    assert each(groups, gather) == [DIFFER] * len(groups)
    assert not out.any()


def test_who_leaves_is_named_to_all(groups):
    groups[1].leave()
    assert each(groups, lambda rank: groups[rank].call("agree", 0)) == [2] * len(groups)


def test_the_file_is_gone_once_all_have_joined(groups, tmp_path):
    assert list(tmp_path.iterdir()) == []


def test_groups_of_another_form_are_not_joined(library, tmp_path):
    path = str(tmp_path / "group")
    first = GroupLibrary(library, path, 0, 2, ROOM)
    assert first.call("join", 0.0) == 2  # rank 1 is missed, and the file removed
    seats = [GroupLibrary(library, path, rank, 3 - rank, ROOM) for rank in range(2)]
    assert sorted(each(seats, lambda rank: seats[rank].call("join", 0.2))) in ([-1, 1], [-1, 2])


def test_a_file_that_cannot_be_made_is_an_error(library, tmp_path):
    with pytest.raises(FileNotFoundError):
        GroupLibrary(library, str(Path(tmp_path) / "missing" / "group"), 0, 2, ROOM)
