from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from chairlift.cluster.config import cache_folder
from chairlift.kernels.cpu.build import build
from chairlift.workers.rank_faults import RankLost, RanksDiffer
from chairlift.workers.tensor_parallel import Alone, Rendezvous, join, new_address
from support.rank_processes import each, join_all, rank_processes

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))) or not Path("/dev/shm").is_dir(),
    reason="there is no C++ compiler, or no shared memory",
)

TRANSPORTS = ("shared", "gloo")


@pytest.fixture(scope="module")
def processes():
    build(cache_folder())  # once, and not on the ranks' time
    with rank_processes(3) as started:
        yield started


@pytest.fixture
def ranks(processes):
    """Three processes that are in no group, or in one that is over."""
    for process in processes:
        process.revive()
    yield processes
    for process in processes:
        if process.process.is_alive():
            process.signal(signal.SIGCONT)


def matrices(size, rows, width, seed=0):
    """Of such different magnitudes that the order of their sum can be seen."""
    random = np.random.default_rng(seed)
    scale = np.exp(random.uniform(-8, 8, (size, rows, width)))
    return list((random.standard_normal((size, rows, width)) * scale).astype(np.float32))


def in_order(parts):
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def same_bits(found, expected):
    return isinstance(found, np.ndarray) and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_has_the_sum_in_order_of_rank(ranks, transport, size):
    join_all(ranks[:size], transport)
    # The last is more than what goes in one piece.
    for rows, width in [(1, 1), (3, 7), (32, 576), (0, 5), (401, 331)]:
        parts = matrices(size, rows, width)
        for found in each(ranks[:size], "sum", parts):
            assert same_bits(found, in_order(parts))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_columns_of_different_widths_lie_side_by_side(ranks, transport):
    join_all(ranks, transport)
    for rows, widths in [(1, (1, 2, 3)), (7, (5, 1, 2)), (9, (40_000, 17, 25_000)), (2, (3, 3, 3))]:
        parts = [matrices(1, rows, width, seed=width)[0] for width in widths]
        for found in each(ranks, "gather", parts, [sum(widths)] * 3):
            assert same_bits(found, np.concatenate(parts, axis=1))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("length", [0, 1, 4087, 4088, 4089, 5_000_001])
def test_every_rank_gets_the_message_of_rank_0(ranks, transport, length):
    join_all(ranks[:2], transport)
    for byte in b"ab":  # the second is not what the first left behind
        message = bytes([byte]) * length
        assert each(ranks[:2], "share", [message, None]) == [message] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_do_not_agree_are_told_so(ranks, transport):
    join_all(ranks, transport)
    for digest in (0, 1, 2**63, 2**64 - 1):
        assert each(ranks, "agree", [digest] * 3) == [None] * 3
    found = each(ranks, "agree", [5, 5, 2**63 + 5])
    assert [type(fault) for fault in found] == [RanksDiffer] * 3
    # From then on the group is of no use, and says so without waiting for anyone.
    assert isinstance(ranks[0].do("agree", 5), RanksDiffer)
    assert isinstance(ranks[2].do("share", None), RanksDiffer)


@pytest.mark.parametrize(
    "calls",
    [
        (("sum", np.zeros((2, 3), np.float32)), ("sum", np.zeros((2, 4), np.float32))),
        (("sum", np.zeros((500, 500), np.float32)), ("sum", np.zeros((1, 4), np.float32))),
        (("sum", np.zeros((2, 3), np.float32)), ("agree", 6)),
        (("share", b"message"), ("agree", 7)),
        (("gather", np.zeros((2, 3), np.float32), 6), ("gather", np.zeros((2, 2), np.float32), 6)),
        (("gather", np.zeros((2, 3), np.float32), 6), ("gather", np.zeros((1, 3), np.float32), 6)),
    ],
)
def test_ranks_that_do_different_things_are_told_so(ranks, calls):
    join_all(ranks[:2])
    for rank, call in zip(ranks, calls, strict=False):
        rank.begin(*call)
    assert [type(rank.end()) for rank in ranks[:2]] == [RanksDiffer] * 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_was_killed_is_lost(ranks, transport, victim):
    join_all(ranks[:2], transport)
    waiting = ranks[1 - victim]
    waiting.begin("agree", 1)
    ranks[victim].kill()
    assert isinstance(waiting.end(), RankLost)
    assert isinstance(waiting.do("sum", np.ones((2, 2), np.float32)), RankLost)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_stands_still_is_lost(ranks, transport, victim):
    join_all(ranks, transport)
    ranks[victim].signal(signal.SIGSTOP)
    others = [rank for rank in ranks if rank is not ranks[victim]]
    for rank in others:
        rank.begin("agree", 1)
    assert [type(rank.end()) for rank in others] == [RankLost] * 2
    # When it goes on, it may find what they had sent before, and then that they gave it up.
    ranks[victim].signal(signal.SIGCONT)
    ranks[victim].do("agree", 1)
    assert isinstance(ranks[victim].do("agree", 1), RankLost)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_computes_for_long_is_not_lost(ranks, transport):
    join_all(ranks[:2], transport)
    ranks[1].begin("agree", 1)
    end = time.monotonic() + 1.6
    while time.monotonic() < end:  # its thread beats while it has nothing to say
        assert ranks[0].do("nothing", 1) == 1
    assert ranks[0].do("agree", 1) is None
    assert ranks[1].end() is None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_closes_is_lost_for_all(ranks, transport):
    join_all(ranks, transport)
    ranks[1].begin("agree", 1)
    assert ranks[2].do("close") is None
    assert isinstance(ranks[0].do("agree", 1), RankLost)
    assert isinstance(ranks[1].end(), RankLost)
    assert isinstance(ranks[2].do("share", None), RankLost)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_ends_a_call_of_the_same_rank(ranks, transport):
    join_all(ranks[:2], transport)
    assert isinstance(ranks[1].do("share_and_close", None), RankLost)


def test_three_ranks_share_one_core(ranks):
    cores = os.sched_getaffinity(0)
    join_all(ranks)
    each(ranks, "pin", [{min(cores)}] * 3)
    try:
        parts = matrices(3, 32, 576)
        for found in each(ranks, "sums", parts, [100] * 3):
            assert same_bits(found, in_order(parts))
    finally:
        each(ranks, "pin", [cores] * 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_waits_takes_no_processor_time(ranks, transport):
    join_all(ranks[:2], transport)
    ranks[1].begin("share_watched", None)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.1)
    ranks[0].do("share", b"")
    assert ranks[1].end() < 0.05


def test_nothing_is_left_behind_once_all_have_joined(ranks):
    assert not Path(join_all(ranks[:2])).exists()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_does_not_come_is_named(ranks, transport):
    address = new_address(transport)
    fault = ranks[0].do("join", Rendezvous(0, 2, transport, address, 0.3))
    assert isinstance(fault, RankLost)
    assert "rank 1" in str(fault)
    assert not Path(address).exists()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_can_be_taken_once(ranks, transport):
    address = new_address(transport)
    ranks[0].begin("join", Rendezvous(0, 3, transport, address, 3.0))
    found = each(ranks[1:], "join", [Rendezvous(1, 3, transport, address, 3.0)] * 2)
    assert {type(fault) for fault in found} == {RanksDiffer, RankLost}
    assert isinstance(ranks[0].end(), RankLost)


def test_a_group_of_one_waits_for_nobody():
    group = join(Rendezvous(0, 1, "shared", "unused", 1.0))
    assert isinstance(group, Alone)
    x, out = torch.arange(6.0).reshape(2, 3), torch.empty(2, 3)
    group.sum(x)
    group.gather(x, out)
    assert torch.equal(out, torch.arange(6.0).reshape(2, 3))
    assert group.share(b"message") == b"message"
    group.agree(3)
    group.close()


def test_a_rendezvous_travels():
    meeting = Rendezvous(1, 2, "gloo", new_address("gloo", "localhost"), 5.0)
    assert pickle.loads(pickle.dumps(meeting)) == meeting
