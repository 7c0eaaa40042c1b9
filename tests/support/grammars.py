"""Grammars over a vocabulary of bytes, and a model that follows them."""

from chairlift.cluster.vocabulary import Vocabulary
from chairlift.workers.grammar_masks import GrammarMasks
from chairlift.workers.grammars import Follower, Grammars
from chairlift.workers.simulated_runner import SimulatedRunner
from support.fake_tokenizer import BOS, FakeTokenizer

__all__ = ["END", "byte_grammars", "following_runner", "texts_after"]

END = BOS
"""The only token that is no byte ends outputs."""


def byte_grammars(vocab_size: int = FakeTokenizer.vocab_size, end: int = END) -> Grammars:
    """Of a model with so many logits; a small one has the first bytes only."""
    tokenizer = FakeTokenizer()
    tokens = tuple(map(tokenizer.token_bytes, range(min(vocab_size, tokenizer.vocab_size))))
    vocabulary = Vocabulary(
        tokens, frozenset({end}), lambda text: tokenizer.encode(text, add_special=False)
    )
    return Grammars(lambda: vocabulary, vocab_size, (end,))


def following_runner(grammars: Grammars, vocab_size: int) -> SimulatedRunner:
    runner = SimulatedRunner(vocab_size, grammars.ends, 0.0)
    runner.masks = GrammarMasks(grammars)
    return runner


def texts_after(follower: Follower, tokens: bytes = b"") -> set[int]:
    """What may come when these bytes have come."""
    follower.take(list(tokens))
    mask = int.from_bytes(follower.mask(), "little")
    return {token for token in range(mask.bit_length()) if mask >> token & 1}
