"""An engine with a fake model, and what its sequences would give alone."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chairlift.cluster.protocol import (
    Controls,
    Delta,
    FinishReason,
    ReplicaInfo,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.fake_runner import FakeRunner, fake_token
from chairlift.workers.intake import Intake
from chairlift.workers.ranks import AgreeingRunner, LeadingIntake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner, Sequence, SequenceKey, StepPlan
from support.ranks import FollowingEngine, LeadingEngine, Tape, Taped

VOCAB_SIZE = 1000
GOES_ON = SamplingParams(max_tokens=1000)


def replica_info(**changes) -> ReplicaInfo:
    facts = {
        "replica_id": "r",
        "model": "fake",
        "vocab_size": VOCAB_SIZE,
        "max_sequence_tokens": 4096,
        "max_sequences": 4,
        "max_waiting": 8,
        "block_size": 4,
        "blocks_total": 1024,
    }
    return ReplicaInfo(**(facts | changes))


def submission(
    handle: int,
    prompt: Iterable[int] = (1, 2, 3),
    *,
    salt: str = "",
    choice: int = 0,
    output: Iterable[int] = (),
    **fields,
) -> Submission:
    """``fields`` are those of SamplingParams and of Request."""
    sampling, others = _split(fields)
    request = Request(f"request-{handle}", tuple(prompt), sampling, cache_salt=salt, **others)
    return Submission(handle, request, choice, tuple(output))


def sequence(
    arrival: int,
    prompt: Iterable[int] = (1, 2, 3),
    *,
    salt: str = "",
    output: Iterable[int] = (),
    **fields,
) -> Sequence:
    """As the intake would build it; its handle is its arrival."""
    prompt = list(prompt)
    sampling, others = _split({"tenant": "t"} | fields)
    return Sequence(
        key=SequenceKey(0, arrival),
        request_id=f"request-{arrival}",
        choice=0,
        sampling=sampling,
        arrival=arrival,
        tokens=[*prompt, *output],
        num_prompt=len(prompt),
        cache_salt=salt,
        **others,
    )


def _split(fields: dict[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
    """Sampling parameters, and what is none of them."""
    names = SamplingParams.__dataclass_fields__.keys()
    sampling = {name: value for name, value in fields.items() if name in names}
    others = {name: value for name, value in fields.items() if name not in names}
    return SamplingParams(**({"max_tokens": 4} | sampling)), others


def alone(
    prompt: Iterable[int],
    sampling: SamplingParams,
    choice: int = 0,
    *,
    eos: Iterable[int] = (),
    vocab_size: int = VOCAB_SIZE,
) -> tuple[tuple[int, ...], FinishReason]:
    """What the fake model answers when nothing else runs, straight from its definition."""
    tokens, output = list(prompt), []
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}
    while True:
        token = fake_token(tokens, sampling.seed, choice, vocab_size)
        tokens.append(token)
        output.append(token)
        if token in ends:
            return tuple(output), FinishReason.STOP
        if len(output) == sampling.max_tokens:
            return tuple(output), FinishReason.LENGTH


@dataclass
class Heard:
    """What the sink was told of one sequence."""

    tokens: list[int] = field(default_factory=list)
    endings: list[FinishReason] = field(default_factory=list)


class Rig:
    """An engine, its parts, and everything that its sink was told.

    ``during_advance`` is called with each plan before it is computed; it may raise.
    """

    ranks = 1

    def __init__(
        self,
        controls: Controls = Controls(max_sequences=4, token_budget=64),
        *,
        info: ReplicaInfo | None = None,
        eos: Iterable[int] = (),
        runner: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
        prefix_cache: bool = True,
    ) -> None:
        self.info = info or replica_info()
        self.plans: list[StepPlan] = []
        self.outputs: list[StepOutput] = []
        self.heard: dict[SequenceKey, Heard] = {}
        self._failed = False
        self.during_advance: Callable[[StepPlan], None] = lambda plan: None
        self.intake = Intake(self.info)
        self.scheduler, *others = (
            Scheduler(
                BlockPool(self.info.blocks_total, self.info.block_size),
                controls,
                eos,
                prefix_cache=prefix_cache,
            )
            for _ in range(self.ranks)
        )
        fake = FakeRunner(
            self.info.vocab_size, block_size=self.info.block_size, delay=self._before_advance
        )
        computes, listen = runner or fake, self._listen
        if self.ranks == 1:
            self.engine = Engine(self.scheduler, computes, self.intake, listen, clock)
            return
        tapes = [Tape(rank, self.ranks) for rank in range(1, self.ranks)]
        leader = Taped(tapes)
        source, computes = LeadingIntake(self.intake, leader), AgreeingRunner(computes, leader)
        self.engine = LeadingEngine(self.scheduler, computes, source, listen, clock)
        self.engine.outputs = self.outputs
        self.engine.followers = [
            FollowingEngine(tape, scheduler, self.info, self._before_others)
            for tape, scheduler in zip(tapes, others, strict=True)
        ]

    def submit(self, handle: int, *args, origin: int = 0, **kwargs) -> SequenceKey:
        answer = self.intake.submit(origin, submission(handle, *args, **kwargs))
        assert answer.refusal is None, answer.detail
        return SequenceKey(origin, handle)

    def planned(self) -> list[int]:
        """The handles in the last plan."""
        return [piece.sequence.key.handle for piece in self.plans[-1].slices]

    def run_until_idle(self, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if not self.engine.step():
                return
            self.scheduler.check_integrity()
        raise AssertionError(f"still busy after {max_steps} steps")

    def answer(self, key: SequenceKey) -> tuple[tuple[int, ...], FinishReason]:
        """All tokens and the one ending of a sequence."""
        heard = self.heard[key]
        (ending,) = heard.endings
        return tuple(heard.tokens), ending

    def _before_advance(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self._failed = True
        self.during_advance(plan)
        self._failed = False

    def _before_others(self, plan: StepPlan) -> None:
        """What makes a step fail on one rank makes it fail on all."""
        if self._failed:
            raise RuntimeError("fails on every rank")

    def _listen(self, output: StepOutput) -> None:
        self.outputs.append(output)
        for origin, deltas in output.deltas.items():
            for delta in deltas:
                self._hear(SequenceKey(origin, delta.handle), delta)

    def _hear(self, key: SequenceKey, delta: Delta) -> None:
        heard = self.heard.setdefault(key, Heard())
        assert not heard.endings, f"{key} has ended, yet there is more: {delta}"
        heard.tokens.extend(delta.tokens)
        if delta.finish is not None:
            heard.endings.append(delta.finish)


class TwoRanksRig(Rig):
    """The other rank runs in lock-step; whatever comes out otherwise there is an error."""

    ranks = 2


@contextmanager
def in_thread(rig: Rig) -> Iterator[threading.Thread]:
    """The engine's loop in a thread of its own, as in production."""
    thread = threading.Thread(target=rig.engine.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        rig.engine.stop()
        thread.join(timeout=10)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.001)
