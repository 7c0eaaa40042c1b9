"""Replicas come with the load and go with it, on real Ray; no answer is lost or changed by it."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chairlift.evaluation.drill_client import Answer, DrillClient, Question, drill_client, in_loop
from chairlift.evaluation.drill_questions import compare, mixed_questions
from chairlift.evaluation.drill_service import Service, engine_section, running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SEATS, STEP_MS = 4, 20.0
DEADLINE_S = 60.0


def config(**autoscaling: object) -> dict[str, object]:
    """Hurried, for tests have no time; the Guard would hold back the load that is to be seen."""
    hurried = {"hold_s": 3.0, "down_cool_down_s": 1.0, "start_s": 4.0, "down_share": 1.0}
    return {
        "engine": engine_section(SEATS, "128MiB", STEP_MS),
        "workers": {"autoscaling": hurried | autoscaling},
        "guard": {"mode": "off"},
    }


def figures(service: Service) -> dict[str, Any]:
    with urllib.request.urlopen(f"{service.url}/dashboard/figures", timeout=5.0) as answer:
        return dict(json.load(answer))


async def ask_all(client: DrillClient, questions: Sequence[Question]) -> list[Answer]:
    return list(await asyncio.gather(*map(client.ask, questions)))


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, DEADLINE_S, what)


def streams(model: str, number: int, tokens: int) -> list[Question]:
    questions = mixed_questions(model, 4 * number, seed=tokens, output_tokens=tokens)
    plain = [each for each in questions if each.body.get("stream") and "n" not in each.body]
    return plain[:number]


def test_load_brings_replicas_and_they_go_while_streams_run_on() -> None:
    with running_service(config=config(min_replicas=1, max_replicas=3)) as service:
        assert service.live_replicas() == 1
        in_loop(_there_and_back(service))

        def settled() -> bool:
            """Serve's controller counts a replica out a moment after routers do."""
            scaling = figures(service)["autoscaling"]
            return (scaling["desired"], scaling["ready"], scaling["max"]) == (1, 1, 3)

        wait_until(settled, DEADLINE_S, "figures of one replica")
        steps = figures(service)["autoscaling"]["steps"]
        assert max(step["after"] for step in steps) == 3
        assert {step["cause"] for step in steps} >= {"calm"}
        assert all(step["reason"] for step in steps)
        assert service.total("chairlift_requests_open") == 0


async def _there_and_back(service: Service) -> None:
    async with drill_client(service.url) as client:
        model = await client.model()
        crowd = asyncio.create_task(ask_all(client, streams(model, 40, 60)))
        await until(lambda: service.live_replicas() == 3, "three replicas")
        assert [each.failure for each in await crowd] == [None] * 40
        long_ones = streams(model, 2, 700)
        disturbed = asyncio.create_task(ask_all(client, long_ones))
        await until(lambda: service.live_replicas() == 1, "one replica")
        found = compare(await ask_all(client, long_ones), await disturbed)
        assert (found.lost, found.texts, found.finishes, found.tokens) == (0, 0, 0, 0)
        page = await client.metrics()
        moved = page.by_label("chairlift_moves_total", "reason")
        assert moved["drained"] > 0
        assert moved.get("lost", 0) == 0


@pytest.mark.slow
def test_the_last_replica_goes_when_nobody_asks_and_comes_when_somebody_does() -> None:
    with running_service(config=config(min_replicas=0, max_replicas=2, idle_s=4.0)) as service:
        assert service.live_replicas() == 1, "it was started once"
        in_loop(_sleep_and_wake(service))


async def _sleep_and_wake(service: Service) -> None:
    async with drill_client(service.url) as client:
        questions = streams(await client.model(), 6, 40)
        awake = await ask_all(client, questions)
        for _ in range(2):
            await until(lambda: service.live_replicas() == 0, "no replica")
            async with client.session.get(f"{service.url}/health") as health:
                assert (await health.json())["status"] == "asleep"
            began = time.monotonic()
            woken = await ask_all(client, questions)
            found = compare(awake, woken)
            assert (found.lost, found.texts, found.tokens) == (0, 0, 0)
            assert time.monotonic() - began < DEADLINE_S
        guard = figures(service)["guard"]
        assert guard is None or guard["rung_number"] == 0
