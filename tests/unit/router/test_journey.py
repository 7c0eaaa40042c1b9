import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from chairlift.cluster.errors import RequestError
from chairlift.cluster.traceparent import read_traceparent
from chairlift.router.ask import Ask
from chairlift.router.router import Router
from support.flights import BIG, read_all, request, router_for, submit
from support.replicas import FakeReplica, eventually, fake_replica
from support.traces import MemoryTracer

ANSWER = "chairlift.answer"


def traced(
    scenario: Callable[[Router, FakeReplica, FakeReplica], Awaitable[None]], sample: float = 1.0
) -> MemoryTracer:
    tracer = MemoryTracer(sample)

    async def main() -> None:
        async with (
            fake_replica(replica_id="one", step_s=0.002, tracer=tracer, **BIG) as one,
            fake_replica(replica_id="two", step_s=0.002, tracer=tracer, **BIG) as two,
            router_for(one, two) as router,
        ):
            router.tracer = tracer
            await scenario(router, one, two)
            placed = [p for p in tracer.named("placement") if p.attributes[ANSWER] == "accepted"]
            await eventually(lambda: len(tracer.named("engine")) == len(placed))

    asyncio.run(main())
    return tracer


async def run_one(router: Router, *_: FakeReplica) -> None:
    await read_all(await submit(router, request(max_tokens=5), continues=False))


def test_a_request_is_a_span_with_its_parts_below_it() -> None:
    tracer = traced(run_one)
    names = [span.name for span in tracer.spans]
    assert sorted(names) == ["admission", "chat", "engine", "placement", "queue"]
    (root,) = tracer.named("chat")
    for span in tracer.spans:
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time
        assert span is root or span.parent.span_id == root.context.span_id
    assert root.attributes["gen_ai.provider.name"] == "chairlift"
    assert root.attributes["gen_ai.usage.input_tokens"] == 3
    assert root.attributes["gen_ai.usage.output_tokens"] == 5
    assert [event.name for event in root.events] == ["first token"]
    (placement,) = tracer.named("placement")
    (engine,) = tracer.named("engine")
    assert placement.attributes["chairlift.replica"] == engine.attributes["chairlift.replica"]
    assert engine.attributes["chairlift.steps"] >= engine.attributes["chairlift.output_tokens"] == 5
    assert placement.attributes[ANSWER] == "accepted"
    assert placement.attributes["chairlift.other_replicas"] == 1


def test_what_is_not_recorded_is_told_so_to_the_replica() -> None:
    async def scenario(router: Router, *_: FakeReplica) -> None:
        flight = await submit(router, request())
        assert flight.journey is None
        parent = read_traceparent(flight.request.traceparent)
        assert parent is not None
        assert not parent.sampled
        await read_all(flight)

    assert traced(scenario, sample=0.0).spans == []


def test_a_move_is_an_event_and_a_second_placement() -> None:
    async def scenario(router: Router, one: FakeReplica, two: FakeReplica) -> None:
        flight = await submit(router, request(max_tokens=200, ignore_eos=True))
        async with flight:
            await anext(flight)
            await eventually(lambda: one.intake.num_open + two.intake.num_open == 1)
            (one if one.intake.num_open else two).cut()
            async for _ in flight:
                pass

    tracer = traced(scenario)
    (root,) = tracer.named("chat")
    assert Counter(event.name for event in root.events) == {
        "first token": 1,
        "replica lost": 1,
        "move": 1,
    }
    first, second = tracer.named("placement")
    assert first.end_time <= second.start_time
    lost, last = sorted(tracer.named("engine"), key=lambda span: span.start_time)
    assert lost.attributes["chairlift.finish_reason"] == "cancelled"  # nobody was left to tell
    told = last.attributes["chairlift.brought_tokens"]
    assert told > 0
    assert told + last.attributes["chairlift.output_tokens"] == 200
    assert root.attributes["chairlift.outcome"] == "finished"


def test_who_is_turned_away_leaves_a_span_with_the_error() -> None:
    async def scenario(router: Router, *_: FakeReplica) -> None:
        with pytest.raises(RequestError):
            router.submit(Ask(request(max_tokens=10**6), continues=True))

    (root,) = traced(scenario).spans
    assert root.name == "text_completion"
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert root.attributes["chairlift.outcome"] == "rejected"
    assert not root.status.is_ok
