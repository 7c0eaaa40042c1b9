"""Ranks in processes of their own, told what to do call by call, so that they can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from chairlift.workers.rank_faults import RankFault
from chairlift.workers.tensor_parallel import Group, Rendezvous, Transport, join, new_address

PATIENCE_S = 60.0


class RankProcess:
    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far,), daemon=True)
        self.process.start()
        far.close()

    def revive(self) -> None:
        """Goes on if it was stopped, starts again if it was killed; forgets old answers."""
        if not self.process.is_alive():
            self._pipe.close()
            self._start()
            return
        self.signal(signal.SIGCONT)
        self.begin("nothing", "revived")
        while self.end() != "revived":
            pass

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def begin(self, call: str, *arguments: Any) -> None:
        self._pipe.send((call, arguments))

    def end(self) -> Any:
        """The answer, or the exception that it was."""
        assert self._pipe.poll(PATIENCE_S), "a rank does not answer"
        return self._pipe.recv()

    def do(self, call: str, *arguments: Any) -> Any:
        self.begin(call, *arguments)
        return self.end()


@contextmanager
def rank_processes(count: int) -> Iterator[list[RankProcess]]:
    processes = [RankProcess() for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def each(processes: Sequence[RankProcess], call: str, *arguments: Sequence[Any]) -> list[Any]:
    """The same call on every rank at once; one argument for each of them."""
    for process, own in zip(processes, zip(*arguments, strict=True), strict=True):
        process.begin(call, *own)
    return [process.end() for process in processes]


def join_all(processes: Sequence[RankProcess], transport: Transport = "shared") -> str:
    """One new group of them all; its address."""
    address = new_address(transport)
    size = len(processes)
    meetings = [Rendezvous(rank, size, transport, address, PATIENCE_S) for rank in range(size)]
    assert each(processes, "join", meetings) == [None] * size
    return address


class _Calls:
    """What a rank can be told to do."""

    group: Group

    def nothing(self, answer: Any) -> Any:
        return answer

    def join(self, rendezvous: Rendezvous) -> None:
        self.group = join(rendezvous)

    def sum(self, x: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(x)
        self.group.sum(tensor)
        return tensor.numpy()

    def sums(self, x: np.ndarray, times: int) -> np.ndarray:
        """The sum of the last time, each time starting from the same."""
        for _ in range(times):
            result = self.sum(x.copy())
        return result

    def gather(self, part: np.ndarray, total: int) -> np.ndarray:
        out = torch.empty(len(part), total)
        self.group.gather(torch.from_numpy(part), out)
        return out.numpy()

    def share(self, message: bytes | None) -> bytes:
        return self.group.share(message)

    def share_watched(self, message: bytes | None) -> float:
        """The share of a core that this process took while it waited."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.group.share(message)
        return (time.process_time() - cpu) / (time.perf_counter() - wall)

    def share_and_close(self, message: bytes | None) -> bytes:
        """Another thread closes meanwhile, or before."""
        threading.Thread(target=self.group.close).start()
        return self.group.share(message)

    def agree(self, digest: int) -> None:
        self.group.agree(digest)

    def close(self) -> None:
        self.group.close()

    def pin(self, cores: set[int]) -> None:
        os.sched_setaffinity(0, cores)


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    calls = _Calls()
    try:
        while True:
            call, arguments = pipe.recv()
            try:
                answer = getattr(calls, call)(*arguments)
            except RankFault as fault:
                answer = type(fault)(str(fault))
            pipe.send(answer)
    except EOFError:
        os._exit(0)
