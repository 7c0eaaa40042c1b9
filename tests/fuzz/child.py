"""Feeds one target, in a process of its own, within bounds that the kernel keeps.

An input that uses a second of CPU, that stands still, or that asks for a GiB more than the process
had at its start ends the process, however deep in a library it is. What it raises is noted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.board import Board, Counts
from fuzz.target import Feed, Target

__all__ = ["Limits", "Plan", "run_child"]

BATCH = 500
"""Inputs between two looks at the clock."""

PRODUCT = "/chairlift/"


@dataclass(frozen=True)
class Limits:
    """Of one input."""

    cpu_s: float = 1.0
    wall_s: float = 10.0
    memory: int = 1 << 30


@dataclass(frozen=True)
class Plan:
    """How long to go on, by the clock or by the number of inputs, and what is drawn."""

    seconds: float | None
    examples: int | None
    seed: int


def run_child(target: Target, plan: Plan, scratch: Path, limits: Limits) -> None:
    """Feed until the plan is done. Faults go into ``scratch``, counts to its board."""
    board = Board(scratch / "board")
    inputs = target.inputs(scratch)
    with target.open(scratch) as feed:
        feeder = _Feeder(target, feed, board, scratch, limits)
        _bound_memory(limits.memory)
        _go_on(inputs, feeder, plan)


def _go_on(inputs: st.SearchStrategy[bytes], feeder: _Feeder, plan: Plan) -> None:
    started = time.monotonic()
    for round_ in count():
        before = feeder.counts.tried
        left = BATCH if plan.examples is None else plan.examples - before
        late = plan.seconds is not None and time.monotonic() - started > plan.seconds
        if left <= 0 or late:
            break
        drawn = settings(
            max_examples=min(left, BATCH),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(plan.seed * 1_000_003 + round_)(drawn(given(inputs)(feeder.take)))()
        if feeder.counts.tried == before:
            break  # there are no more inputs


class _Feeder:
    def __init__(
        self, target: Target, feed: Feed, board: Board, scratch: Path, limits: Limits
    ) -> None:
        self._target = target
        self._feed = feed
        self._board = board
        self._scratch = scratch
        self._limits = limits
        self._known: set[str] = set()
        self._base: int | None = None
        self.counts = Counts()

    def take(self, data: bytes) -> None:
        """Feed one input, and note what came of it."""
        self._board.current = data
        if self._base is None:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
            self._base = _peak()
        begin = time.process_time()
        fault: BaseException | None = None
        refused = False
        try:
            with _watched(self._limits):
                self._feed(data)
        except self._target.refusals:
            refused = True
        except BaseException as error:  # also what a library in Rust raises in a panic
            if isinstance(error, KeyboardInterrupt):
                raise
            fault = error
        counts = self.counts
        counts.tried += 1
        counts.refused += refused
        counts.accepted += not refused and fault is None
        counts.slowest_s = max(counts.slowest_s, time.process_time() - begin)
        counts.growth = max(counts.growth, _peak() - self._base)
        self._board.counts = counts
        if fault is not None:
            self._note(fault, data)

    def _note(self, fault: BaseException, data: bytes) -> None:
        """Each kind once: the error's type, and where in the product it was."""
        frames = traceback.extract_tb(fault.__traceback__)
        ours = [frame for frame in frames if PRODUCT in frame.filename] or list(frames)
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
        kind = f"{type(fault).__name__} at {where}"
        if kind in self._known:
            return
        self._known.add(kind)
        name = hashlib.sha256(kind.encode()).hexdigest()[:12]
        (self._scratch / f"{name}.input").write_bytes(data)
        text = "".join(traceback.format_exception(fault)[-8:])
        about = {"kind": f"{kind}: {fault}"[:300], "trace": text[-4000:]}
        (self._scratch / f"{name}.fault").write_text(json.dumps(about))


@contextlib.contextmanager
def _watched(limits: Limits) -> Iterator[None]:
    """SIGPROF and SIGALRM end the process, also within a call that never returns to Python."""
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _bound_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak() -> int:
    """Not ``ru_maxrss``, which begins with what the parent had."""
    status = Path("/proc/self/status").read_bytes()
    at = status.index(b"VmHWM:") + len(b"VmHWM:")
    return int(status[at : status.index(b"kB", at)]) * 1024


def main(find: Callable[[str], Target], arguments: list[str]) -> None:
    """``NAME SCRATCH PLAN`` of ``fuzz.runner``."""
    name, scratch, text = arguments
    values = json.loads(text)
    run_child(find(name), Plan(**values["plan"]), Path(scratch), Limits(**values["limits"]))
    sys.stdout.flush()
