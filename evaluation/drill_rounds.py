"""Rounds of the same questions on one service: before a disturbance, and during it.

Owns the pacing and the order: questions without stop strings first where one is wanted, then the
undisturbed round, whose answers are what every other one must equal.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.evaluation.drill_client import Answer, DrillClient, Question
from chairlift.evaluation.drill_questions import (
    compare,
    mixed_questions,
    wants_stop,
    with_stop,
)
from chairlift.evaluation.drill_report import Claim, exactly

__all__ = ["Round", "ask_all", "claims_of_sameness", "pauses", "undisturbed"]


@dataclass(frozen=True, slots=True)
class Round:
    """Questions, and the answers to them in the same order."""

    questions: list[Question]
    answers: list[Answer]

    @property
    def stopped(self) -> int:
        """Questions with a stop string that ended an answer."""
        return sum(
            "stop" in question.body and "stop" in answer.finishes
            for question, answer in zip(self.questions, self.answers, strict=True)
        )

    @property
    def longest_gap(self) -> float:
        """Of all streams."""
        return max((gap for answer in self.answers for gap in _gaps(answer)), default=0.0)


def _gaps(answer: Answer) -> list[float]:
    return [gap for said in answer.choices.values() for gap in said.gaps]


async def ask_all(
    client: DrillClient, questions: Sequence[Question], duration_s: float
) -> list[Answer]:
    """Ask them at equal distances over ``duration_s`` seconds, and wait for all answers."""
    start = time.monotonic()

    async def ask(index: int, question: Question) -> Answer:
        due = start + duration_s * index / len(questions)
        await asyncio.sleep(due - time.monotonic())
        return await client.ask(question)

    return await asyncio.gather(*(ask(i, question) for i, question in enumerate(questions)))


async def undisturbed(
    client: DrillClient, number: int, output_tokens: int, duration_s: float
) -> Round:
    """Make the questions, and ask them while nothing is wrong.

    Raises:
        RuntimeError: one was not answered, so there is nothing to compare with.
    """
    questions = mixed_questions(await client.model(), number, 0, output_tokens)
    places = [index for index in range(number) if wants_stop(index)]
    probes = await ask_all(client, [questions[index] for index in places], duration_s / 4)
    for index, answer in zip(places, probes, strict=True):
        questions[index] = with_stop(questions[index], answer, index)
    answers = await ask_all(client, questions, duration_s)
    for answer in [*probes, *answers]:
        if answer.failure is not None:
            raise RuntimeError(f"an undisturbed request failed: {answer.failure}")
    return Round(questions, answers)


def pauses(answers: Sequence[Answer]) -> list[float]:
    """Of each stream, the longest pause less the usual one; 0 where there is none."""
    streams = (said.gaps or [0.0] for answer in answers for said in answer.choices.values())
    return [max(gaps) - statistics.median(gaps) for gaps in streams] or [0.0]


def claims_of_sameness(expected: Sequence[Answer], answers: Sequence[Answer]) -> list[Claim]:
    """That nothing of the answers was lost, repeated or changed."""
    found = compare(expected, answers)
    return [
        exactly("requests lost" + _for_example(found.examples), found.lost, 0),
        exactly("output tokens missing or repeated", found.tokens, 0),
        exactly("requests with another text", found.texts, 0),
        exactly("requests with another finish reason", found.finishes, 0),
        exactly("requests with other log probabilities", found.logprobs, 0),
        exactly("requests with another usage", found.usages, 0),
    ]


def _for_example(examples: Sequence[str]) -> str:
    return f" ({'; '.join(examples)})" if examples else ""
