"""Questions whose answers are known beforehand, because they were asked before.

Owns the mix of kinds and the comparison of answers, to the letter. Every question has a seed, so
its answer is a function of the question alone; a stop string is taken from the answer without one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.evaluation.drill_client import Answer, Question

__all__ = ["Differences", "compare", "mixed_questions", "wants_stop", "with_stop"]

_WORDS = ("snow", "lift", "rope", "hill", "seat", "wind", "pine", "rock", "lake", "path")
_CHAT, _WHOLE, _STOP, _SCORED, _TRIPLE = (1, 2), (1, 3), (2, 5), (3, 7), (3, 11)
"""Shares of kinds, of cycles that have nothing in common, so that all combinations occur."""

_STOP_LENGTHS = (4, 24)
"""Characters; the longer ones span several tokens."""

_STOP_FROM = 0.6
"""Stop strings lie beyond this part of an answer, so that much of it can be disturbed."""


def mixed_questions(model: str, number: int, seed: int, output_tokens: int) -> list[Question]:
    """Chat and completion, streamed and not, one choice and three, with and without logprobs."""
    rng = random.Random(f"questions {seed}")
    return [_question(model, index, output_tokens, rng) for index in range(number)]


def _question(model: str, index: int, output_tokens: int, rng: random.Random) -> Question:
    words = " ".join(rng.choices(_WORDS, k=rng.randint(8, 60)))
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": rng.randint(output_tokens * 3 // 4, output_tokens * 5 // 4),
        "seed": rng.getrandbits(31),
        "ignore_eos": True,
        "temperature": 1.0,
    }
    if not _is(_WHOLE, index):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if _is(_TRIPLE, index):
        body["n"] = 3
    scored = _is(_SCORED, index)
    if _is(_CHAT, index):
        if scored:
            body |= {"logprobs": True, "top_logprobs": 2}
        messages = [{"role": "user", "content": words}]
        return Question("chat/completions", body | {"messages": messages})
    if scored:
        body["logprobs"] = 2
    return Question("completions", body | {"prompt": words})


def _is(share: tuple[int, int], index: int) -> bool:
    """So many of each so many."""
    first, cycle = share
    return index % cycle < first


def wants_stop(index: int) -> bool:
    """Whether the question at this place of the mix is to have a stop string."""
    return _is(_STOP, index)


def with_stop(question: Question, answer: Answer, index: int) -> Question:
    """The same with a stop string that ends the first choice late in its text.

    Unchanged where the text has none: each string must occur there for the first time, and hold
    only characters that stand for themselves.
    """
    text = answer.texts[0] if answer.choices else ""
    length = _STOP_LENGTHS[index // _STOP[1] % len(_STOP_LENGTHS)]
    for start in range(int(_STOP_FROM * len(text)), len(text) - length):
        stop = text[start : start + length]
        if text.find(stop) == start and "\ufffd" not in stop and stop.strip():
            return Question(question.path, {**question.body, "stop": [stop]})
    return question


@dataclass(frozen=True, slots=True)
class Differences:
    """Between two rounds of the same questions.

    Attributes:
        lost: questions that failed or were never answered.
        texts, finishes, logprobs, usages: questions whose answers differ in this.
        tokens: output tokens that are missing or too many, by the server's count.
        examples: what was said of some of the lost.
    """

    lost: int
    texts: int
    finishes: int
    logprobs: int
    usages: int
    tokens: int
    examples: tuple[str, ...]


def compare(expected: Sequence[Answer], answers: Sequence[Answer]) -> Differences:
    """How ``answers`` differ from ``expected``; what was lost counts as lost only."""
    failures = [answer.failure for answer in answers if answer.failure is not None]
    pairs = [
        (one, other) for one, other in zip(expected, answers, strict=True) if other.failure is None
    ]
    return Differences(
        lost=len(failures),
        texts=_count(one.texts != other.texts for one, other in pairs),
        finishes=_count(one.finishes != other.finishes for one, other in pairs),
        logprobs=_count(one.logprobs != other.logprobs for one, other in pairs),
        usages=_count(one.usage != other.usage for one, other in pairs),
        tokens=sum(abs(one.output_tokens - other.output_tokens) for one, other in pairs),
        examples=tuple(dict.fromkeys(failures))[:3],
    )


def _count(differ: Iterable[bool]) -> int:
    return sum(differ)
