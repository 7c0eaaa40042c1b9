"""The load over gRPC, and the comparison with HTTP."""

import asyncio

import pytest

from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.grpc_load import learn, run_grpc_load
from chairlift.evaluation.grpc_overhead import Cost, compare
from chairlift.evaluation.load_run import LoadRun
from chairlift.evaluation.loads import Load, open_load
from chairlift.router.flight import Update
from support.fake_router import FakeRouter, hello
from support.grpc_front import serving_port


def play(router: FakeRouter, load: Load) -> LoadRun:
    async def main() -> LoadRun:
        async with serving_port(router) as port:
            target = await asyncio.to_thread(learn, f"127.0.0.1:{port}")
            return await run_grpc_load(target, load, 20.0)

    return asyncio.run(main())


def load_of(output: int) -> Load:
    return Load("x", tuple(Work(0.0, (1 + each, 2), output) for each in range(5)), 2)


def test_requests_are_greedy_of_exact_lengths_and_every_chunk_is_timed():
    router = FakeRouter(hello)
    run = play(router, load_of(5))
    for record in run.records:
        assert (record.failure, record.tokens, record.prompt_tokens) == (None, 5, 2)
        assert len(record.chunks) == 2
        assert record.digest == run.records[0].digest
        assert record.sent <= record.chunks[0] <= record.chunks[1] <= record.ended
    assert {request.prompt for request in router.requests} == {(1 + each, 2) for each in range(5)}
    for request in router.requests:
        sampling = request.sampling
        assert (sampling.temperature, sampling.ignore_eos, sampling.max_tokens) == (0.0, True, 5)
    router.check_idle()


def test_an_answer_of_another_length_and_an_error_are_failures():
    short = play(FakeRouter(hello), load_of(6))
    assert {record.failure for record in short.records} == {"wrong_length"}
    broken = FakeRouter(lambda request: [[Update(3, "no such choice", 1, None)]])
    assert {each.failure for each in play(broken, load_of(5)).records} == {"grpc_internal"}


def test_a_load_of_its_own_times_is_refused():
    async def main() -> None:
        with pytest.raises(ValueError, match="keeps a number under way"):
            await run_grpc_load(None, open_load("d-code-50", "s", 5.0), 1.0)  # type: ignore[arg-type]

    asyncio.run(main())


def test_ratios_are_taken_within_pairs():
    costs = [
        Cost("http", 10.0, 1.0, 100.0),
        Cost("grpc", 20.0, 2.0, 100.0),
        Cost("grpc", 60.0, 6.0, 100.0),
        Cost("http", 20.0, 2.0, 100.0),
    ]
    found = compare(costs)
    assert found["pairs"] == 2
    assert found["cpu_us"] == {
        "http": 15.0,
        "grpc": 40.0,
        "ratio": 2.5,
        "ratio_least": 2.0,
        "ratio_most": 3.0,
    }
