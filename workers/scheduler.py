"""What runs in the next step, what ends, and who gets the freed room.

Owns every open sequence of one engine and the only path on which blocks return to the pool. It is
a pure state machine: it reads no clock, does no I/O, and knows neither streams nor tensors, so
equal inputs in equal order give equal plans.

    add ─► waiting ──refill──► running ──plan, retire──► finished
              ▲                   │
              └─── preempted ─────┘   at the front: who was admitted once goes before who never was

``running`` stands in order of admission. An older sequence never yields to a newer one and never
waits for its blocks, so the oldest advances in every step, and with it everything ends.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from chairlift.cluster.protocol import Controls, FinishReason, LoadReport, TokenLogprobs
from chairlift.workers.batching import Found, Room, policy_for
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.decisions import TurnedDown
from chairlift.workers.draft import Draft
from chairlift.workers.prefix_cache import PrefixCache
from chairlift.workers.sequence import (
    Admission,
    Sequence,
    SequenceKey,
    Slice,
    Status,
    StepPlan,
    StepResult,
)

__all__ = ["Outcome", "Scheduler", "WaitingQueue"]


class Outcome(NamedTuple):
    """What became of a sequence: new tokens, its end, or both; see ``protocol.Delta``.

    A tuple, for one is made per token, in a third of the time that a frozen dataclass takes.
    """

    key: SequenceKey
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


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

    def __init__(
        self,
        pool: BlockPool,
        controls: Controls,
        eos_token_ids: Iterable[int],
        *,
        prefix_cache: bool = True,
    ) -> None:
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.controls = controls
        self._policy = policy_for(controls.batching)
        self._pool = pool
        self._cache = PrefixCache(pool, prefix_cache)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: dict[SequenceKey, Sequence] = {}
        self._preemptions = 0
        self._tokens_computed = 0
        self._tokens_generated = 0
        self._cache_queries = 0
        self._cache_hits = 0

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
        is preempted, at the latest the one that is short itself. A prompt whose next block an
        older one computes in this very step waits for it, so that it is computed once.
        """
        draft = Draft(self.controls.token_budget)
        for sequence in _in_turn(self.running):
            if sequence.status is not Status.RUNNING:
                continue  # preempted a moment ago, for an older one
            if draft.budget == 0:
                draft.starved.append(sequence)
            elif sequence.num_pending == 1:
                self._draft(draft, sequence)
            else:
                self._cache.adopt(sequence)
                if self._cache.should_wait(sequence, draft.under_way):
                    draft.sharing.append(sequence)
                elif (piece := self._draft(draft, sequence)) is not None:
                    draft.under_way.update(self._cache.touched(piece))
        return draft.plan()

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
        logprobs, prompt_logprobs = result.logprobs, result.prompt_logprobs
        num_sampled = 0
        for row, piece in enumerate(plan.slices):
            sequence, index = piece.sequence, num_sampled
            num_sampled += piece.samples
            if sequence.status is Status.FINISHED:
                continue
            sequence.num_computed += piece.count
            self._tokens_computed += piece.count
            self._cache.keep(piece)
            if row in prompt_logprobs and sequence.num_output == 0:
                sequence.prompt_logprobs.extend(prompt_logprobs[row])
            if piece.samples:
                token = result.tokens[index]
                outcomes.append(self._extend(sequence, token, logprobs.get(index)))
        return outcomes

    def refill(self) -> Admission:
        """Admit waiting sequences into the free seats."""
        if not self.waiting:
            return Admission()
        room = _room(self.running, self._pool, self.controls, self._cache.find)
        choice = self._policy.choose(self.waiting, room)
        for sequence in choice.admitted:
            self.waiting.remove(sequence)
            sequence.status = Status.RUNNING
            self.running.append(sequence)
            gained = self._cache.adopt(sequence)
            if sequence.preemptions == 0 and self._cache.reads(sequence):
                sequence.num_cached = min(gained, sequence.num_prompt)
                self._cache_queries += sequence.num_prompt
                self._cache_hits += sequence.num_cached
        if choice.stopped_by is None:
            return Admission(choice.admitted)
        first = next(iter(self.waiting))
        turned_down = TurnedDown(first.key, choice.stopped_by, len(self.waiting))
        return Admission(choice.admitted, (turned_down,))

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
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError when sequences, seats and blocks contradict each other."""
        self._pool.check_integrity()
        held = Counter(block for sequence in self.running for block in sequence.blocks)
        if held != self._pool.references():
            raise RuntimeError(
                f"blocks are used {self._pool.references()} times, the block tables hold {held}"
            )
        if any(sequence.blocks or sequence.num_computed for sequence in self.waiting):
            raise RuntimeError("a waiting sequence holds blocks")
        if {*self.running, *self.waiting} != set(self._open.values()):
            raise RuntimeError("an open sequence neither runs nor waits")

    def _draft(self, draft: Draft, sequence: Sequence) -> Slice | None:
        """Give a sequence its part of the step, at the expense of newer ones if it must be.

        Returns None when it is the newest itself and had to yield.
        """
        start, pending = sequence.num_computed, sequence.num_pending
        count = min(pending, draft.budget)
        missing = start + count - len(sequence.blocks) * self._pool.block_size
        if missing > 0:
            while (blocks := self._pool.allocate(self._pool.blocks_for(missing))) is None:
                victim = self._preempt_newest()
                draft.drop(victim)
                if victim is sequence:
                    return None
            sequence.blocks.extend(blocks)
        piece = Slice(sequence, start, count, samples=count == pending)
        draft.add(piece)
        return piece

    def _preempt_newest(self) -> Sequence:
        """Take the seat and the blocks of a sequence; it will compute all its tokens again."""
        sequence = self.running.pop()
        self._release(sequence)
        sequence.num_computed = 0
        sequence.prompt_logprobs.clear()
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self._preemptions += 1
        self.waiting.prepend(sequence)
        return sequence

    def _extend(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> Outcome:
        """Append a sampled token, and end the sequence if it was the last."""
        sequence.tokens.append(token)
        self._tokens_generated += 1
        finish = _ending(sequence, token, self._eos_token_ids)
        if finish is not None:
            self._finish(sequence, finish)
        told = () if logprobs is None else (logprobs,)
        if sequence.num_output > 1:
            return Outcome(sequence.key, (token,), finish, logprobs=told)
        return Outcome(
            sequence.key,
            (token,),
            finish,
            sequence.num_cached,
            told,
            tuple(sequence.prompt_logprobs),
        )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Outcome:
        """The only end of a sequence."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish = reason
        del self._open[sequence.key]
        return Outcome(sequence.key, (), reason)

    def _release(self, sequence: Sequence) -> None:
        """The only caller of ``free``.

        The last block goes first, and with it is forgotten first: the others are found without it.
        """
        self._pool.free(reversed(sequence.blocks))
        sequence.blocks = []


def _room(
    running: list[Sequence],
    pool: BlockPool,
    controls: Controls,
    find: Callable[[Sequence], Found],
) -> Room:
    blocks, tokens, size = pool.num_free, controls.token_budget, pool.block_size
    for sequence in running:
        missing = sequence.num_tokens + 1 - len(sequence.blocks) * size
        if missing > 0:
            blocks -= pool.blocks_for(missing)
        tokens -= sequence.num_pending
    return Room(
        running=len(running),
        seats=controls.max_sequences - len(running),
        blocks=blocks,
        tokens=tokens,
        block_size=size,
        find=find,
    )


def _in_turn(running: list[Sequence]) -> list[Sequence]:
    """Who decodes, then who still has a prompt to compute; each in order of admission.

    A prompt waits only for a block of one that stands before it here and is older: nobody who
    comes later, and is newer than both, can take that one's blocks away again.
    """
    decoding: list[Sequence] = []
    unfinished: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.num_pending == 1 else unfinished).append(sequence)
    return decoding + unfinished


def _ending(sequence: Sequence, token: int, eos_token_ids: frozenset[int]) -> FinishReason | None:
    """Why the sequence ends with this token, its last, if it does."""
    sampling = sequence.sampling
    is_eos = token in eos_token_ids and not sampling.ignore_eos
    if is_eos or token in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_output >= sampling.max_tokens else None
