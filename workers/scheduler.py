"""What runs in the next step, what ends, and who gets the freed room.

Owns every open sequence of one engine and the only path on which blocks return to the pool. It is
a pure state machine: it reads no clock, does no I/O, and knows neither streams nor tensors, so
equal inputs in equal order give equal plans.

    add ─► waiting ──refill──► running ──plan, retire──► finished
              ▲                   │
              └─── preempted ─────┘   before those of its tenant and class that never ran

``running`` stands in order of class, and within a class in order of admission. Nobody yields to
one that stands behind, nor waits for the blocks of such a one, so the first advances in every
step; and as none but a higher class can come to stand before it, everything ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from chairlift.cluster.fairness import BURST, VirtualCounters
from chairlift.cluster.protocol import (
    ENDLESS,
    BlockEvents,
    Controls,
    FinishReason,
    LoadReport,
    TokenLogprobs,
)
from chairlift.workers.batching import Found, Room, policy_for
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.decisions import TurnedDown
from chairlift.workers.draft import Draft
from chairlift.workers.prefix_cache import PrefixCache
from chairlift.workers.running_order import in_turn, is_in_order, seat, victim_of
from chairlift.workers.sequence import (
    NO_TOKEN,
    Admission,
    Sequence,
    SequenceKey,
    Slice,
    Status,
    StepPlan,
    StepResult,
)
from chairlift.workers.waiting_queue import WaitingQueue

__all__ = ["Outcome", "Scheduler"]


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


class Scheduler:
    """The state of one engine's sequences, and the decisions of each step.

    A step is ``plan`` → (the runner) → ``retire`` → ``refill``; ``add``, ``cancel``, ``hand_over``
    and ``set_controls`` may come before any of them, except that ``cancel`` between ``plan`` and
    ``retire`` goes through ``retire``, and ``hand_over`` comes after it.

    Tenants are charged for the prompt tokens that are left to compute when a sequence is admitted
    first, and for each token that it yields; not for what is computed again, nor for what a
    sequence brings along that ran elsewhere.
    """

    def __init__(
        self,
        pool: BlockPool,
        controls: Controls,
        eos_token_ids: Iterable[int],
        *,
        prefix_cache: bool = True,
    ) -> None:
        self.counters = VirtualCounters(BURST)
        self.running: list[Sequence] = []
        self.controls = controls
        self._policy = policy_for(controls.batching)
        self._pool = pool
        self._cache = PrefixCache(pool, prefix_cache)
        self.waiting = WaitingQueue(
            self.counters,
            controls.fair,
            lambda sequence: _input_of(sequence, self._cache.find(sequence).tokens),
        )
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: dict[SequenceKey, Sequence] = {}
        self._preemptions = 0
        self._steps_saturated = 0
        self._starved = False
        self._tokens_computed = 0
        self._tokens_recomputed = 0
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
            self.waiting.arrive(sequence)

    def cancel(self, keys: Iterable[SequenceKey]) -> list[Outcome]:
        """End sequences now; a key that names no open sequence is skipped."""
        return [
            self._finish(self._open[key], FinishReason.CANCELLED)
            for key in keys
            if key in self._open
        ]

    def hand_over(self) -> list[Outcome]:
        """End all that is open, for another replica to go on with."""
        return [
            self._finish(sequence, FinishReason.HANDED_OVER)
            for sequence in list(self._open.values())
        ]

    def set_controls(self, controls: Controls) -> None:
        """Put newer Controls in force from the next decision on; older ones are ignored.

        Sequences that run keep their seats when there are now fewer.
        """
        if controls.version > self.controls.version:
            self.controls = controls
            self._policy = policy_for(controls.batching)
            self.waiting.set_fair(controls.fair)

    def plan(self) -> StepPlan:
        """The tokens of the next step: who decodes first, then unfinished prompts in chunks.

        Allocates the blocks that they need. Where blocks are short, one that stands behind in
        ``running`` is preempted, at the latest the one that is short itself. A prompt whose next
        block one before it computes in this very step waits for it, so that it is computed once.
        """
        draft = Draft(self.controls.token_budget)
        for sequence in in_turn(self.running):
            if sequence.status is not Status.RUNNING:
                continue  # preempted a moment ago, for one that stands before it
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
        self._starved = bool(draft.starved or draft.preempted)
        return draft.plan()

    def retire(
        self, plan: StepPlan, result: StepResult | None, cancelled: Iterable[SequenceKey]
    ) -> list[Outcome]:
        """Take in what the step computed, and end what is finished.

        Args:
            plan: what ran.
            result: one token for each slice that samples; who has none fails. None when the step
                failed, and then all its sequences do.
            cancelled: keys whose cancellation came meanwhile; they emit nothing more.
        """
        outcomes = self.cancel(cancelled)
        if result is None:
            running = [p.sequence for p in plan.slices if p.sequence.finish is None]
            return outcomes + [self._finish(each, FinishReason.FAILED) for each in running]
        logprobs, prompt_logprobs = result.logprobs, result.prompt_logprobs
        num_sampled = 0
        served: Counter[str] = Counter()
        for row, piece in enumerate(plan.slices):
            sequence, index = piece.sequence, num_sampled
            num_sampled += piece.samples
            if sequence.status is Status.FINISHED:
                continue
            sequence.num_computed += piece.count
            self._tokens_computed += piece.count
            again = min(sequence.num_reached, sequence.num_computed) - piece.start
            self._tokens_recomputed += max(0, again)
            self._cache.keep(piece)
            if row in prompt_logprobs and sequence.num_output == 0:
                sequence.prompt_logprobs.extend(prompt_logprobs[row])
            if piece.samples:
                token = result.tokens[index]
                if token == NO_TOKEN:
                    outcomes.append(self._finish(sequence, FinishReason.FAILED))
                    continue
                sequence.tokens.append(token)
                served[sequence.tenant] += 1
                finish = _ending(sequence, token, self._eos_token_ids)
                outcomes.append(_told(sequence, token, finish, logprobs.get(index)))
                if finish is not None:
                    self._finish(sequence, finish)
        for tenant, count in served.items():
            self._tokens_generated += count
            self.counters.charge(tenant, output_tokens=count)
        return outcomes

    def refill(self) -> Admission:
        """Admit waiting sequences into the free seats."""
        starved, self._starved = self._starved, False
        if not self.waiting:
            self._steps_saturated += starved
            return Admission()
        room = _room(self.running, self._pool, self.controls, self._cache.find)
        choice = self._policy.choose(self.waiting, room)
        for sequence in choice.admitted:
            self.waiting.remove(sequence)
            sequence.status = Status.RUNNING
            seat(self.running, sequence)
            gained = self._cache.adopt(sequence)
            self.counters.chosen(sequence.tenant, sequence.priority)
            self.counters.charge(sequence.tenant, input_tokens=_input_of(sequence, gained))
            if sequence.preemptions == 0 and self._cache.reads(sequence):
                sequence.num_cached = min(gained, sequence.num_prompt)
                self._cache_queries += sequence.num_prompt
                self._cache_hits += sequence.num_cached
        self._steps_saturated += starved or choice.stopped_by is not None
        if choice.stopped_by is None:
            return Admission(choice.admitted)
        first = next(iter(self.waiting))
        turned_down = TurnedDown(first.key, choice.stopped_by, len(self.waiting))
        return Admission(choice.admitted, (turned_down,))

    def load(self, step: int, step_s: float = 0.0, predicted_s: float = 0.0) -> LoadReport:
        """The state in numbers, after step number ``step``; what steps took is the engine's."""
        unfinished = freeing = 0
        pool, growth, room = self._pool, 0, self._pool.num_free * self._pool.block_size
        for sequence in self.running:
            held = len(sequence.blocks)
            growth += pool.blocks_for(sequence.max_total) - held
            room += max(0, held * pool.block_size - sequence.num_tokens)
            if sequence.num_pending > 1:
                unfinished += sequence.num_pending
            elif sequence.num_output + 1 >= sequence.sampling.max_tokens:
                freeing += 1
        return LoadReport(
            step=step,
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting.num_tokens + unfinished,
            blocks_used=pool.num_used,
            blocks_total=pool.num_blocks,
            preemptions=self._preemptions,
            tokens_computed=self._tokens_computed,
            tokens_generated=self._tokens_generated,
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
            freeing=freeing,
            steps_saturated=self._steps_saturated,
            tokens_recomputed=self._tokens_recomputed,
            step_s=step_s,
            predicted_s=predicted_s,
            steps_left=ENDLESS if growth <= pool.num_free else room // len(self.running),
        )

    def take_block_events(self) -> BlockEvents | None:
        """What the prefix cache gained and lost since the last call; None for no change."""
        return self._pool.take_events()

    def check_integrity(self) -> None:
        """Raises RuntimeError when sequences, seats and blocks contradict each other."""
        self._pool.check_integrity()
        held = Counter(block for sequence in self.running for block in sequence.blocks)
        if held != self._pool.references():
            raise RuntimeError(
                f"blocks are used {self._pool.references()} times, the block tables hold {held}"
            )
        waiting = list(self.waiting.sequences())
        if any(sequence.blocks or sequence.num_computed for sequence in waiting):
            raise RuntimeError("a waiting sequence holds blocks")
        if {*self.running, *waiting} != set(self._open.values()):
            raise RuntimeError("an open sequence neither runs nor waits")
        if not is_in_order(self.running):
            raise RuntimeError("a lower class stands before a higher one")

    def _draft(self, draft: Draft, sequence: Sequence) -> Slice | None:
        """Give a sequence its part of the step, at the expense of those behind it if it must be.

        Returns None when nobody stands behind it, and it had to yield itself.
        """
        start, pending = sequence.num_computed, sequence.num_pending
        count = min(pending, draft.budget)
        missing = start + count - len(sequence.blocks) * self._pool.block_size
        if missing > 0:
            while (blocks := self._pool.allocate(self._pool.blocks_for(missing))) is None:
                victim = victim_of(self.running, sequence, self.waiting.value)
                self._preempt(victim)
                draft.drop(victim)
                if victim is sequence:
                    return None
            sequence.blocks.extend(blocks)
        piece = Slice(sequence, start, count, samples=count == pending)
        draft.add(piece)
        return piece

    def _preempt(self, sequence: Sequence) -> None:
        """Take the seat and the blocks of a sequence; it will compute all its tokens again."""
        self.running.remove(sequence)
        _release(sequence, self._pool)
        sequence.num_reached = max(sequence.num_reached, sequence.num_computed)
        sequence.num_computed = 0
        sequence.prompt_logprobs.clear()
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self._preemptions += 1
        self.waiting.insert(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Outcome:
        """The only end of a sequence."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        _release(sequence, self._pool)
        sequence.status = Status.FINISHED
        sequence.finish = reason
        del self._open[sequence.key]
        return Outcome(sequence.key, (), reason)


def _release(sequence: Sequence, pool: BlockPool) -> None:
    """The only caller of ``free``.

    The last block goes first, and with it is forgotten first: the others are found without it.
    """
    pool.free(reversed(sequence.blocks))
    sequence.blocks = []


def _input_of(sequence: Sequence, found: int) -> int:
    """Prompt tokens to charge for at its admission, of which so many were found in the cache."""
    return 0 if sequence.resumes else sequence.num_prompt - found


def _room(
    running: list[Sequence],
    pool: BlockPool,
    controls: Controls,
    find: Callable[[Sequence], Found],
) -> Room:
    blocks, tokens, size = pool.num_free, controls.token_budget, pool.block_size
    for sequence in running:
        length = sequence.max_total if controls.reserve else sequence.num_tokens + 1
        missing = length - len(sequence.blocks) * size
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
        reserve=controls.reserve,
    )


def _told(
    sequence: Sequence, token: int, finish: FinishReason | None, logprobs: TokenLogprobs | None
) -> Outcome:
    """A sampled token, with all that goes with the very first one."""
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


def _ending(sequence: Sequence, token: int, eos_token_ids: frozenset[int]) -> FinishReason | None:
    """Why the sequence ends with this token, its last, if it does."""
    sampling = sequence.sampling
    is_eos = token in eos_token_ids and not sampling.ignore_eos
    if is_eos or token in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_output >= sampling.max_tokens else None
