"""Runs of a study on a whole service: one of its own for each, over HTTP or gRPC.

Owns how an arm becomes a configuration, how the load gets there, and what of the answers goes into
a run. Each tenant has a key and a client of its own; the load is open. What one sees from outside
is noted: neither seats nor steps.

A chunk's tokens all have its time; over HTTP, where a chunk does not say how many it has, they are
spread evenly over the chunks, and answers are compared by their text.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc.aio
import orjson

from chairlift.cluster.config_sections import ModelSource
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.evaluation.completions import CompletionClient, Target
from chairlift.evaluation.drill_client import in_loop, load_session
from chairlift.evaluation.drill_flood import hash_of, key_of
from chairlift.evaluation.drill_service import Service, running_service
from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.grpc_load import GrpcClient, grpc_ask, learn
from chairlift.evaluation.lengths import prompt_ids
from chairlift.evaluation.load import Ask, Send, open_loop, started_clock
from chairlift.evaluation.load_run import checked, completion_ask
from chairlift.evaluation.records import RequestRecord
from chairlift.evaluation.study_arm import DELAY_S, Lone, arm_of, longest
from chairlift.evaluation.study_energy import EnergyMeter
from chairlift.evaluation.study_others import OthersMeter, family_s
from chairlift.evaluation.study_plan import Arm, Plan, Planted, ServiceTarget
from chairlift.evaluation.study_run import Fate, Outcome, Run, Use
from chairlift.evaluation.study_work import Asked

__all__ = ["ServiceRuns", "config_of", "open_service", "outcome_of"]

_TIMEOUT_S = 600.0
_LONE_PROMPT, _LONE_OUTPUT = 128, 24
_REFUSED = ("http_429", "http_503", "http_504", "grpc_resource_exhausted", "grpc_unavailable")


class ServiceRuns:
    """Runs on services that are started and stopped for each; see ``study_targets``."""

    def __init__(self, plan: Plan, target: ServiceTarget, spec: ModelSpec) -> None:
        self.vocab_size = spec.vocab_size
        self._plan = plan
        self._target = target
        self._spec = spec

    def run(
        self, arm_name: str, workload_name: str, round: int, order: int, asked: Sequence[Asked]
    ) -> Run:
        """One arm on one workload once."""
        arm = arm_of(self._plan, arm_name)
        tenants = sorted({each.tenant for each in asked})
        config = config_of(self._plan, self._target, arm, tenants, self._spec)
        late_s = DELAY_S if arm.planted is Planted.SLOW_GENERATOR else 0.0
        with running_service(config=config) as service:
            played = in_loop(_play(service, self._target.via, asked, late_s, self._lone_asks()))
            preemptions, moves = _seen(service, played.began_at)
        first_s = min((each.intended_s for each in played.outcomes), default=0.0)
        last_s = max((each.ended_s for each in played.outcomes), default=first_s)
        return Run(
            workload=workload_name,
            arm=arm_name,
            round=round,
            order=order,
            began_at=played.began_at,
            seconds=last_s - first_s,
            replicas=_replicas(self._target),
            outcomes=played.outcomes,
            use=Use(preemptions=preemptions, energy_j=played.energy_j, others=played.others),
            moves=moves,
        )

    def _lone_asks(self) -> list[Asked]:
        """Twice the same kind, unlike each other; the first one warms up."""
        most, ids = longest(self._plan), prompt_ids(self.vocab_size)
        output = max(2, min(_LONE_OUTPUT, most - 1))
        prompt = max(1, min(_LONE_PROMPT, most - output))
        return [
            Asked(turn, "", 0.0, tuple(ids[turn * prompt : (turn + 1) * prompt]), output)
            for turn in range(3)
        ]


@contextmanager
def open_service(plan: Plan, target: ServiceTarget) -> Iterator[ServiceRuns]:
    """Check what can be checked before the first run.

    Raises:
        ConfigError: an arm asks for what a service has no setting for.
        StartupError: there is no such model.
    """
    source = ModelSource.model_validate(target.config.get("model") or {})
    spec = read_spec(resolve_model(source.path))
    for name, arm in plan.arms.items():
        if arm.reserve:
            raise ConfigError(f"arm {name}: a service has no setting to reserve blocks")
        if arm.planted in (Planted.REFILL_LATE, Planted.SLOWER_STEP):
            raise ConfigError(f"arm {name}: {arm.planted} cannot be planted into a service")
    yield ServiceRuns(plan, target, spec)


def config_of(
    plan: Plan, target: ServiceTarget, arm: Arm, tenants: Sequence[str], spec: ModelSpec
) -> dict[str, object]:
    """What ``serve --config`` is to read: the target's, and the arm's settings before it."""
    engine: dict[str, object] = {
        "max_sequences": arm.seats or plan.seats,
        "token_budget": arm.token_budget or plan.token_budget,
        "block_size": plan.block_size,
        "batching": arm.batching.value,
    }
    if (blocks := arm.blocks or plan.blocks) is not None:
        engine["kv_memory"] = blocks * plan.block_size * spec.kv_bytes_per_token(4)
    first = plan.targets[0]
    weights = {name: 1.0 for name in tenants}
    if arm.planted is Planted.DOUBLE_WEIGHT:
        weights[min(tenants)] = 2.0
    settings: dict[str, object] = {
        "engine": engine,
        "router": {"fair": arm.fair},
        "guard": {"mode": arm.guard},
        "telemetry": {
            "first_token_target_s": first.first_token_s,
            "per_token_target_s": first.per_token_s,
        },
        "tenants": {
            name: {"keys": [hash_of(key_of(name))], "weight": weight}
            for name, weight in weights.items()
        },
    }
    return _merged(target.config, settings)


def outcome_of(asked: Asked, record: RequestRecord, lone: Lone) -> Outcome:
    """What the client saw, in the words of a study."""
    fate, why = Fate.COMPLETED, ""
    if record.failure is not None:
        fate, why = Fate.FAILED, record.failure
        if record.failure == "gave_up":
            fate = Fate.GAVE_UP
        elif record.failure in _REFUSED and not record.chunks:
            fate = Fate.REFUSED
    return Outcome(
        number=asked.number,
        tenant=asked.tenant,
        prompt=len(asked.prompt),
        asked=asked.output,
        intended_s=asked.at_s,
        sent_s=record.sent,
        ended_s=record.ended,
        tokens_s=_spread(record.chunks, record.tokens),
        fate=fate,
        why=why,
        digest=record.digest if fate is Fate.COMPLETED else None,
        alone_s=lone.alone_s(len(asked.prompt), asked.output) or None,
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """``began_at``: of the wall clock."""

    began_at: float
    outcomes: tuple[Outcome, ...]
    energy_j: float | None
    others: float | None


@dataclass(frozen=True, slots=True)
class _Door:
    """One way in: how a request is written down, and how each tenant sends it."""

    ask: Callable[[Work, int], Ask]
    sends: Mapping[str, Send]


async def _play(
    service: Service, via: str, asked: Sequence[Asked], late_s: float, lone_asks: Sequence[Asked]
) -> _Played:
    tenants = sorted({each.tenant for each in asked})
    lone = await _lone(service, via, tenants, lone_asks)
    clock = started_clock()
    records: dict[int, RequestRecord] = {}
    async with _door(service, via, tenants, clock) as door:
        tenant_of = {each.number: each.tenant for each in asked}

        async def send(ask: Ask, _due: float) -> RequestRecord:
            intended = intended_of[ask.number]
            record = await door.sends[tenant_of[ask.number]](ask, intended)
            records[ask.number] = checked(record)
            return record

        ordered = sorted(asked, key=lambda each: (each.at_s, each.number))
        # Made beforehand, so that the client has little to do meanwhile.
        written = [_written(door, each, index * late_s) for index, each in enumerate(ordered)]
        began_at, begin_s = time.time(), clock()
        energy, beside = EnergyMeter(), OthersMeter(family_s)
        intended_of = {each.number: begin_s + each.at_s for each in asked}
        asks = [replace(each, at=begin_s + each.at) for each in written]
        await open_loop(asks, send, lambda _record: None, clock=clock, max_in_flight=len(asks))
        joules, others = energy.joules(), beside.share()
    outcomes = tuple(
        outcome_of(each, _since(records[each.number], begin_s), lone)
        for each in sorted(asked, key=lambda each: each.number)
    )
    return _Played(began_at, outcomes, joules, others)


def _since(record: RequestRecord, begin_s: float) -> RequestRecord:
    """With times from then on."""
    return replace(
        record,
        intended=record.intended - begin_s,
        sent=None if record.sent is None else record.sent - begin_s,
        ended=record.ended - begin_s,
        chunks=tuple(at - begin_s for at in record.chunks),
    )


def _written(door: _Door, asked: Asked, late_s: float) -> Ask:
    work = Work(asked.at_s + late_s, asked.prompt, asked.output)
    ask = door.ask(work, asked.number)
    return replace(ask, number=asked.number, patience_s=asked.gives_up_after_s)


async def _lone(service: Service, via: str, tenants: Sequence[str], asks: Sequence[Asked]) -> Lone:
    """From requests that come one after the other, of which the first is left out."""
    clock, found = started_clock(), []
    async with _door(service, via, tenants[:1], clock) as door:
        for each in asks:
            (send,) = door.sends.values()
            record = await send(_written(door, each, 0.0), clock())
            if record.failure is None and len(record.chunks) > 1:
                step_s = (record.chunks[-1] - record.chunks[0]) / (record.tokens - 1)
                first_s = record.time_to_first_token
                found.append(Lone(max(0.0, first_s - step_s) / len(each.prompt), step_s))
    return found[-1] if found else Lone()


@asynccontextmanager
async def _door(
    service: Service, via: str, tenants: Sequence[str], clock: Callable[[], float]
) -> AsyncIterator[_Door]:
    async with AsyncExitStack() as stack:
        sends: dict[str, Send] = {}
        if via == "grpc":
            types = learn(service.grpc_address)
            for name in tenants:
                channel = grpc.aio.insecure_channel(service.grpc_address)
                await stack.enter_async_context(channel)
                sends[name] = GrpcClient(
                    channel, types, clock=clock, timeout_s=_TIMEOUT_S, key=key_of(name)
                ).send
            yield _Door(partial(grpc_ask, types), sends)
            return
        model = _model_name(service, tenants[0])
        for name in tenants:
            headers = {"Authorization": f"Bearer {key_of(name)}"}
            session = await stack.enter_async_context(load_session(headers))
            target = Target(f"{service.url}/v1", model)
            sends[name] = CompletionClient(session, target, clock=clock, timeout_s=_TIMEOUT_S).send
        yield _Door(lambda work, seed: completion_ask(model, work, seed=seed), sends)


def _model_name(service: Service, tenant: str) -> str:
    request = urllib.request.Request(
        f"{service.url}/v1/models", headers={"Authorization": f"Bearer {key_of(tenant)}"}
    )
    with urllib.request.urlopen(request, timeout=10.0) as answer:  # nosec B310
        return str(json.load(answer)["data"][0]["id"])


def _seen(service: Service, began_at: float) -> tuple[int | None, tuple[tuple[float, str], ...]]:
    """Preemptions, and the Guard's moves, as the service tells of itself."""
    preemptions: int | None = None
    moves: tuple[tuple[float, str], ...] = ()
    with suppress(OSError, LookupError):
        preemptions = int(service.total("vllm:num_preemptions_total"))
    with (
        suppress(OSError, ValueError, KeyError),
        urllib.request.urlopen(f"{service.url}/guard", timeout=5.0) as answer,  # nosec B310
    ):
        moves = tuple(
            (float(move["at"]) - began_at, str(move["after"]))
            for move in orjson.loads(answer.read()).get("moves", ())
            if move["before"] != move["after"]
        )
    return preemptions, moves


def _replicas(target: ServiceTarget) -> int:
    workers = target.config.get("workers")
    return int(workers.get("replicas", 1)) if isinstance(workers, dict) else 1


def _merged(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Section by section; ``other`` goes before ``one``."""
    merged: dict[str, Any] = dict(one)
    for name, value in other.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = _merged(before, value)
        else:
            merged[name] = value
    return merged


def _spread(chunks: Sequence[float], tokens: int) -> tuple[float, ...]:
    """A time for each token."""
    if not chunks:
        return ()
    return tuple(chunks[i * len(chunks) // tokens] for i in range(tokens))
