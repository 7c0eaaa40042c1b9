"""What runs in the next step, what ends, and who gets the freed room.

Owns every open sequence of one engine and the only path on which blocks return to the pool. It is
a pure state machine: it reads no clock, does no I/O, and knows neither streams nor tensors, so
equal inputs in equal order give equal plans.

    add ─► waiting ──refill──► running ──plan, retire──► finished
              ▲                   │
              └─── preempted ─────┘   at the front: who was admitted once goes before who never was

``running`` stands in order of admission. An older sequence never yields to a newer one, so the
oldest advances in every step, and with it everything ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chairlift.cluster.protocol import Controls, FinishReason, LoadReport
from chairlift.workers.batching import Room, policy_for
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.sequence import Sequence, SequenceKey, Slice, Status, StepPlan, StepResult

__all__ = ["Outcome", "Scheduler", "WaitingQueue"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a sequence: new tokens, its end, or both."""

    key: SequenceKey
    tokens: tuple[int, ...]
    finish: FinishReason | None = None


class WaitingQueue:
    """Sequences without a seat, in order of service; every change takes constant time."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._sequences: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def append(self, sequence: Sequence) -> None:
        self._sequences[sequence] = None
        self.num_tokens += sequence.num_tokens

    def prepend(self, sequence: Sequence) -> None:
        self.append(sequence)
        self._sequences.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence]
        self.num_tokens -= sequence.num_tokens


class Scheduler:
    """The state of one engine's sequences, and the decisions of each step.

    A step is ``plan`` → (the runner) → ``retire`` → ``refill``; ``add``, ``cancel`` and
    ``set_controls`` may come before any of them, except that ``cancel`` between ``plan`` and
    ``retire`` goes through ``retire``.
    """

    def __init__(self, pool: BlockPool, controls: Controls, eos_token_ids: Iterable[int]) -> None:
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.controls = controls
        self._policy = policy_for(controls.batching)
        self._pool = pool
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: dict[SequenceKey, Sequence] = {}
        self._preemptions = 0
        self._tokens_computed = 0
        self._tokens_generated = 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue new sequences, in their order; each must be able to fit when it is alone."""
        for sequence in sequences:
            self._open[sequence.key] = sequence
            self.waiting.append(sequence)

    def cancel(self, keys: Iterable[SequenceKey]) -> list[Outcome]:
        """End sequences now; a key that names no open sequence is skipped."""
        return [
            self._finish(self._open[key], FinishReason.CANCELLED)
            for key in keys
            if key in self._open
        ]

    def set_controls(self, controls: Controls) -> None:
        """Put newer Controls in force from the next decision on; older ones are ignored.

        Sequences that run keep their seats when there are now fewer.
        """
        if controls.version > self.controls.version:
            self.controls = controls
            self._policy = policy_for(controls.batching)

    def plan(self) -> StepPlan:
        """The tokens of the next step: who decodes first, then unfinished prompts in chunks.

        Allocates the blocks that they need. Where blocks are short the newest running sequence
        is preempted, at the latest the one that is short itself.
        """
        budget = self.controls.token_budget
        planned: dict[Sequence, Slice] = {}
        for sequence in _in_turn(self.running):
            if budget == 0:
                break
            if sequence.status is not Status.RUNNING:
                continue  # preempted a moment ago, for an older one
            start, pending = sequence.num_computed, sequence.num_pending
            count = min(pending, budget)
            if start + count > len(sequence.blocks) * self._pool.block_size:
                for victim in self._secure_blocks(sequence, start + count):
                    if victim in planned:
                        budget += planned.pop(victim).count
                if sequence.status is not Status.RUNNING:
                    continue
            planned[sequence] = Slice(sequence, start, count, samples=count == pending)
            budget -= count
        return StepPlan(tuple(planned.values()))

    def retire(
        self, plan: StepPlan, result: StepResult | None, cancelled: Iterable[SequenceKey]
    ) -> list[Outcome]:
        """Take in what the step computed, and end what is finished.

        Args:
            plan: what ran.
            result: one token for each slice that samples; None when the step failed, and then
                its sequences end as failed.
            cancelled: keys whose cancellation came meanwhile; they emit nothing more.
        """
        outcomes = self.cancel(cancelled)
        if result is None:
            running = [p.sequence for p in plan.slices if p.sequence.finish is None]
            return outcomes + [self._finish(each, FinishReason.FAILED) for each in running]
        sampled = iter(result.tokens)
        for piece in plan.slices:
            sequence = piece.sequence
            token = next(sampled) if piece.samples else None
            if sequence.status is Status.FINISHED:
                continue
            sequence.num_computed += piece.count
            self._tokens_computed += piece.count
            if token is not None:
                outcomes.append(self._extend(sequence, token))
        return outcomes

    def refill(self) -> list[Sequence]:
        """Admit waiting sequences into the free seats; returns those admitted, in order."""
        if not self.waiting:
            return []
        admitted = self._policy.choose(self.waiting, _room(self.running, self._pool, self.controls))
        for sequence in admitted:
            self.waiting.remove(sequence)
            sequence.status = Status.RUNNING
            self.running.append(sequence)
        return admitted

    def load(self, step: int) -> LoadReport:
        """The state in numbers, after step number ``step``."""
        unfinished = sum(s.num_pending for s in self.running if s.num_pending > 1)
        return LoadReport(
            step=step,
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting.num_tokens + unfinished,
            blocks_used=self._pool.num_used,
            blocks_total=self._pool.num_blocks,
            preemptions=self._preemptions,
            tokens_computed=self._tokens_computed,
            tokens_generated=self._tokens_generated,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when sequences, seats and blocks contradict each other."""
        self._pool.check_integrity()
        held = [block for sequence in self.running for block in sequence.blocks]
        if len(held) != self._pool.num_used or len(set(held)) != len(held):
            raise RuntimeError(
                f"{self._pool.num_used} blocks are used, the block tables hold {held}"
            )
        if any(sequence.blocks or sequence.num_computed for sequence in self.waiting):
            raise RuntimeError("a waiting sequence holds blocks")
        if {*self.running, *self.waiting} != set(self._open.values()):
            raise RuntimeError("an open sequence neither runs nor waits")

    def _secure_blocks(self, sequence: Sequence, end: int) -> list[Sequence]:
        """Extend a block table to ``end`` tokens; returns whom that preempted, newest first."""
        missing = self._pool.blocks_for(end) - len(sequence.blocks)
        victims: list[Sequence] = []
        while (blocks := self._pool.allocate(missing)) is None:
            victims.append(self._preempt_newest())
            if victims[-1] is sequence:
                return victims
        sequence.blocks.extend(blocks)
        return victims

    def _preempt_newest(self) -> Sequence:
        """Take the seat and the blocks of a sequence; it will compute all its tokens again."""
        sequence = self.running.pop()
        self._release(sequence)
        sequence.num_computed = 0
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self._preemptions += 1
        self.waiting.prepend(sequence)
        return sequence

    def _extend(self, sequence: Sequence, token: int) -> Outcome:
        """Append a sampled token, and end the sequence if it was the last."""
        sequence.tokens.append(token)
        self._tokens_generated += 1
        sampling = sequence.sampling
        is_eos = token in self._eos_token_ids and not sampling.ignore_eos
        if is_eos or token in sampling.stop_token_ids:
            return self._finish(sequence, FinishReason.STOP, (token,))
        if sequence.num_output >= sampling.max_tokens:
            return self._finish(sequence, FinishReason.LENGTH, (token,))
        return Outcome(sequence.key, (token,))

    def _finish(
        self, sequence: Sequence, reason: FinishReason, tokens: tuple[int, ...] = ()
    ) -> Outcome:
        """The only end of a sequence."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish = reason
        del self._open[sequence.key]
        return Outcome(sequence.key, tokens, reason)

    def _release(self, sequence: Sequence) -> None:
        """The only caller of ``free``."""
        self._pool.free(sequence.blocks)
        sequence.blocks = []


def _room(running: list[Sequence], pool: BlockPool, controls: Controls) -> Room:
    spoken_for = sum(
        max(0, pool.blocks_for(sequence.num_tokens + 1) - len(sequence.blocks))
        for sequence in running
    )
    return Room(
        running=len(running),
        seats=controls.max_sequences - len(running),
        blocks=pool.num_free - spoken_for,
        tokens=controls.token_budget - sum(sequence.num_pending for sequence in running),
        block_size=pool.block_size,
    )


def _in_turn(running: list[Sequence]) -> list[Sequence]:
    """Who decodes, then who still has a prompt to compute; each in order of admission."""
    decoding = [sequence for sequence in running if sequence.num_pending == 1]
    unfinished = [sequence for sequence in running if sequence.num_pending > 1]
    return decoding + unfinished
