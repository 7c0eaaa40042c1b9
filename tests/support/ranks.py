"""Groups of ranks without processes: in lock-step for properties, in threads for whole loops."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from chairlift.cluster.protocol import ReplicaInfo
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.rank_faults import RankLost, RanksDiffer
from chairlift.workers.ranks import AgreeingRunner, FollowerIntake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Sequence, StepPlan

Call = tuple[str, bytes | int]
Value = bytes | int | None


@dataclass
class Tape:
    """A rank other than 0, which makes after each step of rank 0 the calls that rank 0 made."""

    rank: int
    size: int
    calls: deque[Call] = field(default_factory=deque)

    def share(self, message: bytes | None) -> bytes:
        assert message is None
        shared = self._take("share")
        assert isinstance(shared, bytes)
        return shared

    def agree(self, digest: int) -> None:
        if self._take("agree") != digest:
            raise RanksDiffer("digests differ")

    def _take(self, call: str) -> bytes | int:
        expected, value = self.calls.popleft() if self.calls else ("nothing", 0)
        if expected != call:
            raise RanksDiffer(f"rank {self.rank} calls {call}, rank 0 called {expected}")
        return value


@dataclass
class Taped:
    """Rank 0, whose calls are written down for the others."""

    tapes: list[Tape]
    rank: int = 0

    @property
    def size(self) -> int:
        return 1 + len(self.tapes)

    def share(self, message: bytes | None) -> bytes:
        assert message is not None
        self._put(("share", message))
        return message

    def agree(self, digest: int) -> None:
        self._put(("agree", digest))

    def _put(self, call: Call) -> None:
        for tape in self.tapes:
            tape.calls.append(call)


class FollowingEngine:
    """The engine of a rank other than 0, with a fake model of its own.

    ``before_advance`` is called as a rig's runner calls it; may raise.
    """

    def __init__(
        self,
        tape: Tape,
        scheduler: Scheduler,
        info: ReplicaInfo,
        before_advance: Callable[[StepPlan], None],
    ) -> None:
        self.tape = tape
        self.outputs: list[StepOutput] = []
        runner = FakeRunner(info.vocab_size, block_size=info.block_size, delay=before_advance)
        self.scheduler = scheduler
        self.engine = Engine(
            scheduler, AgreeingRunner(runner, tape), FollowerIntake(tape), self.outputs.append
        )

    def step(self, leader: Scheduler, leaders_last: StepOutput | None) -> None:
        """Take the turn that rank 0 has taken, and compare all that it has led to."""
        busy = self.engine.step()
        assert not self.tape.calls, "rank 0 has done more"
        self.scheduler.check_integrity()
        assert busy == (leaders_last is not None)
        if busy:
            assert timeless(self.outputs.pop()) == timeless(leaders_last) and not self.outputs
        assert state(self.scheduler) == state(leader)


class LeadingEngine(Engine):
    """Rank 0's, after each step of which the others take theirs."""

    followers: list[FollowingEngine]
    outputs: list[StepOutput]

    def step(self) -> bool:
        busy = super().step()
        for follower in self.followers:
            follower.step(self._scheduler, self.outputs[-1] if busy else None)
        return busy


def state(scheduler: Scheduler) -> tuple[object, ...]:
    """All that the scheduler's next decisions follow from, but for the prefix cache."""
    return (
        scheduler.controls,
        [facts(sequence) for sequence in scheduler.running],
        [facts(sequence) for sequence in scheduler.waiting],
        scheduler.load(0),
    )


def facts(sequence: Sequence) -> dict[str, object]:
    return {each.name: getattr(sequence, each.name) for each in fields(sequence)}


class ThreadGroup:
    """Ranks in threads of one process: every call is a meeting of all of them.

    A rank that closes, or that calls something else than the others, ends all present and later
    calls with the fault that a real group would have.
    """

    def __init__(self, meeting: "Meeting", rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.size = meeting.size

    def share(self, message: bytes | None) -> bytes:
        shared = self._meeting.call(self.rank, "share", message)[0]
        assert isinstance(shared, bytes)
        return shared

    def agree(self, digest: int) -> None:
        if len(set(self._meeting.call(self.rank, "agree", digest))) > 1:
            raise RanksDiffer("digests differ")

    def close(self) -> None:
        self._meeting.close()


class Meeting:
    """Where the threads of a group meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._came = threading.Condition()
        self._calls: dict[int, tuple[str, Value]] = {}
        self._met: list[tuple[str, Value]] = []
        self._round = 0
        self._closed = False

    def call(self, rank: int, kind: str, value: Value) -> list[Value]:
        """What every rank came with, once all are there."""
        with self._came:
            mine = self._round
            self._calls[rank] = kind, value
            if len(self._calls) == self.size:
                self._met, self._calls = list(dict(sorted(self._calls.items())).values()), {}
                self._round += 1
                self._came.notify_all()
            self._came.wait_for(lambda: self._round > mine or self._closed)
            if self._round == mine:
                raise RankLost("a rank has left")
            met = self._met
        if len({each for each, _ in met}) > 1:
            raise RanksDiffer("the calls differ")
        return [each for _, each in met]

    def close(self) -> None:
        with self._came:
            self._closed = True
            self._came.notify_all()


def thread_groups(size: int) -> list[ThreadGroup]:
    """One a rank."""
    meeting = Meeting(size)
    return [ThreadGroup(meeting, rank) for rank in range(size)]


def timeless(output: StepOutput) -> StepOutput:
    """Without what steps took, which no two runs have in common."""
    return replace(output, load=output.load._replace(step_s=0.0, predicted_s=0.0))
