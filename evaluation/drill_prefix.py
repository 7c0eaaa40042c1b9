"""Requests that have much in common, over several replicas that each have a cache of their own.

One long system prompt and many questions: the replicas together should find as much in their
caches as a single one would, and still share the work. Conversations, whose turns repeat all that
was said before, show what each way of placing requests is worth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import Answer, DrillClient, Question, drill_client, in_loop
from chairlift.evaluation.drill_report import Claim, Report, at_least, at_most, exactly
from chairlift.evaluation.drill_service import Service, engine_section, running_service
from chairlift.evaluation.metrics_page import MetricsPage

__all__ = ["PrefixSettings", "conversations", "drill", "run", "shared_prompt"]

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
SAMPLE_S = 0.1
SETTLE_S = 1.0
"""After the first request, until each replica has said that it works."""

TOKENS = range(1000, 30_000)
"""Token ids that are words, or parts of words."""


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """``conversations``, ``turns``, ``first_tokens``, ``turn_tokens``: of the comparison."""

    requests: int = 800
    at_once: int = 200
    shared_tokens: int = 600
    own_tokens: tuple[int, int] = (16, 64)
    output_tokens: tuple[int, int] = (4, 12)
    hit_share: float = 0.9
    evenness: float = 1.5
    conversations: int = 48
    turns: int = 5
    first_tokens: int = 200
    turn_tokens: int = 120
    placements: tuple[str, ...] = ("prefix-aware", "round-robin", "least-loaded")
    seats: int = 16
    replicas: int = 4
    step_ms: float | None = 50.0

    @classmethod
    def real(cls) -> PrefixSettings:
        return cls(
            requests=80, at_once=32, conversations=8, turns=3, seats=4, replicas=2, step_ms=None
        )

    @property
    def best_hit_rate(self) -> float:
        """Of conversations that stay where they began: each turn finds all but what is new."""
        turns = range(self.turns)
        lengths = [self.first_tokens + turn * self.turn_tokens for turn in turns]
        return sum(lengths[:-1]) / sum(lengths)

    def config(self, replicas: int, placement: str = "prefix-aware") -> dict[str, object]:
        return {
            "engine": engine_section(self.seats, "1GiB", self.step_ms),
            "workers": {"replicas": replicas},
            "router": {"placement": placement},
        }


@dataclass(frozen=True, slots=True)
class _Found:
    """What one load on one service showed.

    Attributes:
        queries, hits: prompt tokens looked up and found, by replica.
        samples: looks at all replicas while more was to come.
        idle: those in which a replica had nothing to do while sequences waited at another one.
    """

    queries: Mapping[str, float]
    hits: Mapping[str, float]
    failed: int
    samples: int = 0
    idle: int = 0

    @property
    def hit_rate(self) -> float:
        return sum(self.hits.values()) / max(1.0, sum(self.queries.values()))

    @property
    def evenness(self) -> float | None:
        """The largest share of the prompt tokens over the least; they are nearly equally long."""
        least = min(self.queries.values(), default=0.0)
        return max(self.queries.values()) / least if least else None


def run(settings: PrefixSettings) -> Report:
    """On services of its own: one replica, all of them, and then each placement."""
    report = Report("prefix", asdict(settings))
    found = {}
    for replicas in (1, settings.replicas):
        with running_service(config=settings.config(replicas)) as service:
            found[replicas] = in_loop(drill(service, settings))
    report.claims = _claims(settings, found[1], found[settings.replicas])
    report.figures = {
        "hit rate of one replica": found[1].hit_rate,
        f"hit rate of {settings.replicas} replicas": found[settings.replicas].hit_rate,
        "prompt tokens by replica": list(found[settings.replicas].queries.values()),
        "looks at all replicas": found[settings.replicas].samples,
    }
    report.figures["conversations: hit rate at best"] = settings.best_hit_rate
    for placement in settings.placements:
        with running_service(config=settings.config(settings.replicas, placement)) as service:
            talked = in_loop(conversations(service, settings))
        report.figures[f"conversations, {placement}: hit rate"] = talked.hit_rate
        report.figures[f"conversations, {placement}: most over least tokens"] = talked.evenness
    return report


def _claims(settings: PrefixSettings, alone: _Found, together: _Found) -> list[Claim]:
    return [
        exactly("requests that failed", alone.failed + together.failed, 0),
        at_least(
            "hit rate of all replicas over that of one alone",
            together.hit_rate / alone.hit_rate if alone.hit_rate else None,
            settings.hit_share,
        ),
        at_most(
            "prompt tokens of the busiest replica over the idlest",
            together.evenness,
            settings.evenness,
        ),
        exactly("looks at which one idled while others had a line", together.idle, 0),
    ]


async def drill(service: Service, settings: PrefixSettings) -> _Found:
    """One system prompt, many questions, so many at a time; on a service with nothing to do."""
    async with drill_client(service.url) as client:
        model, before = await client.model(), await client.metrics()
        left = iter(range(settings.requests))
        answers: list[Answer] = []
        sent = 0

        async def one_after_the_other() -> None:
            nonlocal sent
            for index in left:
                sent += 1
                answers.append(await client.ask(shared_prompt(settings, model, index)))

        looks: list[bool] = []
        watching = asyncio.create_task(_watch(client, looks, lambda: sent < settings.requests))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(settings.at_once):
                tasks.create_task(one_after_the_other())
        await watching
        return _found(before, await client.metrics(), answers, looks)


async def conversations(service: Service, settings: PrefixSettings) -> _Found:
    """Each turn repeats the conversation so far; on a service with nothing to do."""
    async with drill_client(service.url) as client:
        model, before = await client.model(), await client.metrics()
        answers: list[Answer] = []

        async def talk(index: int) -> None:
            rng = random.Random(f"conversation {index}")
            said = rng.choices(TOKENS, k=settings.first_tokens)
            for _ in range(settings.turns):
                await asyncio.sleep(rng.uniform(0.0, 0.5))
                answers.append(await client.ask(_question(settings, model, said, rng)))
                said = [*said, *rng.choices(TOKENS, k=settings.turn_tokens)]

        async with asyncio.TaskGroup() as tasks:
            for index in range(settings.conversations):
                tasks.create_task(talk(index))
        return _found(before, await client.metrics(), answers, [])


def shared_prompt(settings: PrefixSettings, model: str, index: int) -> Question:
    """The ``index``-th question after the prompt that all have in common."""
    shared = random.Random("system prompt").choices(TOKENS, k=settings.shared_tokens)
    rng = random.Random(f"question {index}")
    own = rng.choices(TOKENS, k=rng.randint(*settings.own_tokens))
    return _question(settings, model, shared + own, rng)


def _question(
    settings: PrefixSettings, model: str, prompt: list[int], rng: random.Random
) -> Question:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": rng.randint(*settings.output_tokens),
        "seed": rng.getrandbits(31),
        "ignore_eos": True,
    }
    return Question("completions", body)


async def _watch(client: DrillClient, looks: list[bool], more: Callable[[], bool]) -> None:
    """Notes, while ``more`` is to come, whether a replica idles and another has a line."""
    await asyncio.sleep(SETTLE_S)
    while more():
        health = await client.health()
        idle = any(each.running == 0 for each in health)
        looks.append(idle and any((each.waiting or 0) > 0 for each in health))
        await asyncio.sleep(SAMPLE_S)


def _found(
    before: MetricsPage, after: MetricsPage, answers: list[Answer], looks: list[bool]
) -> _Found:
    """What happened between two pages of one router."""

    def grown(name: str) -> dict[str, float]:
        first = before.by_label(name, "replica")
        last = after.by_label(name, "replica")
        return {replica: value - first.get(replica, 0.0) for replica, value in last.items()}

    return _Found(
        queries=grown(QUERIES),
        hits=grown(HITS),
        failed=sum(answer.failure is not None for answer in answers),
        samples=len(looks),
        idle=sum(looks),
    )
