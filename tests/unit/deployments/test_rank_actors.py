"""A group of ranks is as sound as its worst one, and ends as a whole."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import ray

from chairlift.cluster.config import load_config
from chairlift.cluster.errors import ModelError
from chairlift.deployments import rank_actors
from chairlift.deployments.rank_actors import RankActors

CONFIG = load_config(overrides={"workers.tensor_parallel": 2}, environment={})


class Method:
    """Called as Ray calls an actor's."""

    def __init__(self, body: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = body


class Actor:
    """A Worker that does what a test wants of it; it never answers while it is ``silent``."""

    def __init__(self, rank: int, address: Path, calls: list[str]) -> None:
        self.rank, self.address, self.calls = rank, address, calls
        self.silent = asyncio.Event()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fails: Exception | None = None
        self.node_id = "here"
        for name in ("node", "meeting_place", "load", "progress", "fault", "until_fault"):
            setattr(self, name, Method(getattr(self, f"_{name}")))
        for name in ("drain", "stop"):
            setattr(self, name, Method(self._noting(name)))

    def _noting(self, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def note() -> None:
            await self._answer()
            self.calls.append(f"{name} {self.rank}")

        return note

    async def _answer(self) -> None:
        if self.silent.is_set():
            await asyncio.Future()

    async def _node(self) -> str:
        return self.node_id

    async def _meeting_place(self, transport: str) -> str:
        self.address.touch()
        return str(self.address)

    async def _load(self, transport: str, address: str) -> str | None:
        self.calls.append(f"load {self.rank} {transport}")
        if self.fails is not None:
            raise self.fails
        return None if self.rank else "endpoint"

    async def _progress(self) -> tuple[str, float]:
        await self._answer()
        return "", 1.0

    async def _fault(self) -> str | None:
        await self._answer()
        return self.end.result() if self.end.done() else None

    async def _until_fault(self) -> str:
        return await self.end


def with_group(
    scenario: Callable[..., Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """Runs ``scenario(group, actors)``; returns what was done to the actors."""
    calls: list[str] = []

    async def main() -> None:
        actors = [Actor(rank, tmp_path / "address", calls) for rank in range(2)]
        monkeypatch.setattr(ray, "kill", lambda actor: calls.append(f"kill {actor.rank}"))
        monkeypatch.setattr(rank_actors, "PING_S", 0.01)
        monkeypatch.setattr(rank_actors, "SILENCE_S", 0.1)
        monkeypatch.setattr(rank_actors, "HAND_OVER_S", 0.1)
        await scenario(RankActors(CONFIG, actors, on_gpus=False), actors)

    asyncio.run(main())
    return calls


async def ended(group: RankActors) -> str:
    """Why the group has ended; all of it has been killed then."""
    async with asyncio.timeout(10):
        while group.fault is None or not group._watch.done():
            await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="unfit"):
        await group.check()
    return group.fault


def test_all_load_at_once_and_stop_in_order(tmp_path, monkeypatch):
    async def scenario(group, actors):
        assert await group.load() == "endpoint"
        await group.check()
        await group.stop()

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls == ["load 0 shared", "load 1 shared", "stop 0", "stop 1"]


def test_ranks_on_several_nodes_talk_over_the_network(tmp_path, monkeypatch):
    async def scenario(group, actors):
        actors[1].node_id = "there"
        await group.load()
        await group.stop()

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[:2] == ["load 0 gloo", "load 1 gloo"]


def test_a_rank_that_cannot_load_ends_all_with_its_reason(tmp_path, monkeypatch):
    async def scenario(group, actors):
        actors[1].fails = ModelError("no such file")
        with pytest.raises(ModelError, match="no such file"):
            await group.load()

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[2:] == ["kill 0", "kill 1"]
    assert not (tmp_path / "address").exists()


def test_when_a_rank_dies_all_others_are_killed_at_once(tmp_path, monkeypatch):
    async def scenario(group, actors):
        await group.load()
        actors[1].end.set_exception(ray.exceptions.RayActorError())
        assert await ended(group) == "rank 1 has died"

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[2:] == ["kill 0", "kill 1"]
    assert not (tmp_path / "address").exists()


def test_a_rank_that_is_silent_ends_the_group_after_rank_0_has_handed_over(tmp_path, monkeypatch):
    async def scenario(group, actors):
        await group.load()
        actors[1].silent.set()
        assert await ended(group) == "rank 1 is silent"

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[2:] == ["kill 1", "drain 0", "kill 0", "kill 1"]


def test_rank_0_that_cannot_hand_over_is_not_waited_for(tmp_path, monkeypatch):
    async def scenario(group, actors):
        await group.load()
        actors[0].silent.set()
        assert await ended(group) == "rank 0 is silent"

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[2:] == ["kill 1", "kill 0", "kill 1"]


def test_a_loop_that_ends_by_a_fault_ends_the_group(tmp_path, monkeypatch):
    async def scenario(group, actors):
        await group.load()
        actors[0].end.set_result("RanksDiffer: plans")
        assert await ended(group) == "rank 0: RanksDiffer: plans"
        await group.stop()  # there is nothing left to stop

    calls = with_group(scenario, tmp_path, monkeypatch)
    assert calls[2:] == ["kill 1", "drain 0", "kill 0", "kill 1"]
