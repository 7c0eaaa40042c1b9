"""Grammars made ready for one model, and which tokens may come next under them.

Owns the compiled grammars, a bounded number of them, and the ``Follower``, whose state is a
function of the tokens that it was given alone. What grammars are written in, and how large they may
be, is ``cluster.grammar``'s.

    text ──compile, once──► pattern ──copy──► Follower ──token──► Follower ──mask──► bits

The vocabulary is read when the first grammar comes, since most replicas never see one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from chairlift.cluster.grammar import LIMITS, one_line
from chairlift.cluster.vocabulary import Vocabulary

__all__ = ["Follower", "Grammars"]

MAX_COMPILED = 64
"""Grammars; each takes some hundred kilobytes, large ones a few megabytes."""


class Grammars:
    """What a replica needs to follow grammars. Methods may be called from any thread.

    Args:
        read: the model's vocabulary; called once, when it is needed.
        vocab_size: of the logits; no token beyond the vocabulary's is ever allowed.
        ends: tokens that may come where the grammar can end, and nowhere else.
    """

    def __init__(
        self, read: Callable[[], Vocabulary], vocab_size: int, ends: Iterable[int]
    ) -> None:
        self._read = read
        self._vocab_size = vocab_size
        self._ends = tuple(sorted(set(ends)))
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an output, ascending."""
        return self._ends

    def compiled(self, grammar: str) -> Future[LLMatcher]:
        """The grammar, once it is compiled, in a thread; ValueError where that cannot be done."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is None:
                found = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return found

    def follow(self, grammar: str) -> Follower:
        """At the begin of an output; waits where the grammar is not compiled. Raises ValueError."""
        with self._lock:
            found = self._compiled.get(grammar)
        pattern = found.result() if found is not None and found.done() else self._compile(grammar)
        return Follower(pattern.deep_copy())

    def _compile(self, grammar: str) -> LLMatcher:
        if not self._ends:
            raise ValueError("the model has no end token, so its output could not end")
        try:
            with self._reading:
                tokenizer = self._tokenizer
            pattern = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        except BaseException as error:  # a panic of the library is no Exception
            raise ValueError(f"cannot be compiled: {one_line(str(error))}") from error
        if pattern.is_error():
            raise ValueError(one_line(pattern.get_error()))
        trial = pattern.deep_copy()
        if not any(trial.compute_bitmask()) or trial.is_error():
            raise ValueError("there is no text that fits")
        return pattern

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        wrapped = TokenizerWrapper(_Words(self._read(), self._ends[0]))
        return LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=list(self._ends))


class Follower:
    """One output's place in its grammar."""

    __slots__ = ("_matcher", "num_tokens")

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.num_tokens = 0

    def take(self, tokens: Sequence[int]) -> None:
        """What comes next in the output."""
        self.num_tokens += len(tokens)
        if tokens:
            self._matcher.consume_tokens(list(tokens))

    def mask(self) -> bytes:
        """A bit for each token, the lowest first: 1 if it may come next.

        Empty where no token may, because what came does not follow the grammar, or what may come
        could not be found out within the limits.
        """
        if self._matcher.is_error():
            return b""
        mask = self._matcher.compute_bitmask()
        return b"" if self._matcher.is_error() else mask


class _Words:
    """A vocabulary as the library asks for it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, end: int) -> None:
        self.eos_token_id = end
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))
