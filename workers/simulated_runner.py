"""A runner that computes nothing: a step takes as long as it is told to.

Its tokens are a function of those before them. Owns the rule that makes tokens, and their log
probabilities, from a fingerprint of the prefix. It serves load tests of routers and clients on
machines that could not run the model that fast, so it does as little as it can in a step;
``workers.fake_runner`` is for tests of engines, and checks the cache as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.workers.fake_runner import fingerprint, sample_token
from chairlift.workers.grammar_masks import Masks, NoMasks
from chairlift.workers.sequence import NO_TOKEN, Sequence, Slice, StepPlan, StepResult

__all__ = ["SimulatedRunner", "simulated_token"]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """``ends`` are never sampled, so that ``max_tokens`` alone says how long an output is.

    With a grammar they are, where it has ended.
    """

    size: int
    ends: tuple[int, ...]

    def sample(self, prefix: int, seed: int, choice: int) -> int:
        token = sample_token(prefix, seed, choice, self.size - len(self.ends))
        for end in self.ends:  # ascending, so each makes way for the next
            token += token >= end
        return token

    def sample_masked(self, prefix: int, seed: int, choice: int, mask: bytes) -> int:
        """The first token from the sampled one on that is allowed; ends only for want of others."""
        allowed = int.from_bytes(mask, "little")
        texts = allowed
        for end in self.ends:
            texts &= ~(1 << end)
        first = sample_token(prefix, seed, choice, self.size)
        behind = (texts or allowed) >> first << first
        lowest = behind or texts or allowed
        return (lowest & -lowest).bit_length() - 1 if lowest else NO_TOKEN

    def score(self, prefix: int, token: int, count: int) -> TokenLogprobs:
        """As if ``token`` were the likeliest, and those after it in the vocabulary next to it.

        The values are multiples of 1/128 and survive 32 bits.
        """
        chosen = -(fingerprint((token,), prefix) >> 54) / 128
        return TokenLogprobs(
            chosen,
            tuple(
                ((token + i) % self.size, chosen - i / 128) for i in range(min(count, self.size))
            ),
        )


def simulated_token(
    prefix: Iterable[int], seed: int, choice: int, vocab_size: int, ends: Iterable[int] = ()
) -> int:
    """The token that follows ``prefix``; never one of ``ends``."""
    vocabulary = _Vocabulary(vocab_size, tuple(sorted(set(ends))))
    return vocabulary.sample(fingerprint(prefix), seed, choice)


class SimulatedRunner:
    """Implements ``workers.sequence.Runner``.

    Args:
        vocab_size: tokens are below it.
        eos_token_ids: tokens that are never sampled.
        step_s: what a step takes.
        clock: monotonic seconds.
        sleep: waits for seconds.

    Attributes:
        masks: which tokens sequences with a grammar may have.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        step_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._vocabulary = _Vocabulary(vocab_size, tuple(sorted(set(eos_token_ids))))
        self.masks: Masks = NoMasks()
        self._step_s = step_s
        self._clock = clock
        self._sleep = sleep
        # Of the sequences in the last step: how many tokens, and their fingerprint.
        self._prefixes: dict[Sequence, tuple[int, int]] = {}

    def advance(self, plan: StepPlan) -> StepResult:
        started = self._clock()
        masks = self.masks.begin(plan)
        self._prefixes = {piece.sequence: self._extended(piece) for piece in plan.slices}
        result = self._sampled(plan, masks())
        left = self._step_s - (self._clock() - started)
        if left > 0:
            self._sleep(left)
        return result

    def _extended(self, piece: Slice) -> tuple[int, int]:
        """The prefix at the end of the slice; one that was preempted may have come further."""
        count, prefix = self._prefixes.get(piece.sequence, (0, 0))
        end = piece.start + piece.count
        if count >= end:
            return count, prefix
        return end, fingerprint(piece.sequence.tokens[count:end], prefix)

    def _sampled(self, plan: StepPlan, masks: Mapping[int, bytes]) -> StepResult:
        tokens: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, piece in enumerate(plan.slices):
            sequence, asked = piece.sequence, piece.sequence.sampling
            if asked.prompt_logprobs is not None and not sequence.num_output:
                prompt_logprobs[row] = tuple(self._scored(piece, asked.prompt_logprobs))
            if piece.samples:
                _, prefix = self._prefixes[sequence]
                way = prefix, asked.seed, sequence.choice
                mask = masks.get(len(tokens))
                if mask is None:
                    token = self._vocabulary.sample(*way)
                else:
                    token = self._vocabulary.sample_masked(*way, mask)
                if asked.logprobs is not None:
                    scored = self._vocabulary.score(prefix, token, asked.logprobs)
                    logprobs[len(tokens)] = scored
                tokens.append(token)
        return StepResult(tokens, logprobs, prompt_logprobs)

    def _scored(self, piece: Slice, count: int) -> Iterator[TokenLogprobs]:
        """Of the tokens after each one of the slice, as far as they are known."""
        after, tokens = piece.start + 1, piece.sequence.tokens
        prefix = fingerprint(tokens[:after])
        for token in tokens[after : after + piece.count]:
            yield self._vocabulary.score(prefix, token, count)
            prefix = fingerprint((token,), prefix)
