from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from chairlift.workers import device_queue
from chairlift.workers.device_queue import queue_for
from support.lazy_cuda import LazyCuda

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device(request.param)


@pytest.fixture
def queue(device):
    queue = queue_for(device)
    with queue.active(), torch.inference_mode():
        yield queue


def numbers(*shape, first=0):
    return np.arange(first, first + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def test_arrays_arrive_as_they_are(queue, device):
    sent = [numbers(3), numbers(2, 5, first=7), numbers(0, 6), numbers(1, first=99)]
    arrived = queue.send(sent)
    assert [each.device.type for each in arrived] == [device.type] * 4
    for array, tensor in zip(sent, arrived, strict=True):
        assert torch.equal(tensor.cpu(), torch.from_numpy(array))


def test_two_steps_are_under_way_at_once_and_buffers_grow(queue):
    """Each step adds up what was sent before it is over, although buffers are used again."""
    results = []
    for step in range(40):
        size = 10 << step % 20
        (first, second) = queue.send([numbers(size, first=step), numbers(size, first=1)])
        results.append((queue.fetch((first + second).sum()[None]), size * (size + step)))
        if len(results) == 2:
            fetch, expected = results.pop(0)
            assert fetch() == [expected]


def test_what_is_fetched_is_of_the_moment_of_asking(queue, device):
    values = torch.arange(4, device=device)
    fetch = queue.fetch(values)
    values += 10
    assert queue.fetch(values)() == [10, 11, 12, 13]
    assert fetch() == [0, 1, 2, 3]


def test_what_is_captured_works_on_the_same_memory_each_time(queue, device):
    x, total = torch.ones(3, device=device), torch.zeros(3, device=device)
    replay = queue.capture(lambda: total.copy_(2 * x))
    x.fill_(5)
    replay()
    assert total.tolist() == [10.0] * 3
    x.fill_(6)
    replay()
    assert total.tolist() == [12.0] * 3


@pytest.fixture(params=[False, True], ids=["late copies", "early copies"])
def cuda(request, monkeypatch):
    cuda = LazyCuda(eager=request.param)
    monkeypatch.setattr(device_queue, "torch", cuda)
    monkeypatch.setattr(device_queue, "_CUDA", cuda.cuda)
    monkeypatch.setattr(device_queue, "_rounded", lambda count: max(100, count))  # so they grow
    return cuda


def send_and_add_up(cuda, queue, step):
    """What the step will find, and what it should."""
    sent = numbers(5 + 40 * (step % 5), first=1000 * step)
    (arrived,) = queue.send([sent])
    result = torch.zeros(2, dtype=torch.int64)
    cuda.compute(partial(add_up, arrived.as_subclass(torch.Tensor), result))
    return result, [int(sent.sum()), int(sent[-1])]


def add_up(numbers, result):
    result[0], result[1] = numbers.sum(), numbers[-1]


def test_with_one_step_more_under_way_than_is_waited_for_each_gets_its_own(cuda):
    queue = device_queue.CudaQueue(torch.device("cuda"))
    fetches = []
    for step in range(12):
        result, expected = send_and_add_up(cuda, queue, step)
        fetches.append((queue.fetch(result), expected))
        if step:
            fetch, expected = fetches[step - 1]
            assert fetch() == expected


def test_so_does_a_step_that_nobody_waits_for(cuda):
    queue = device_queue.CudaQueue(torch.device("cuda"))
    steps = [send_and_add_up(cuda, queue, step) for step in range(12)]
    while cuda.go_on():
        pass
    assert [result.tolist() for result, _ in steps] == [expected for _, expected in steps]
