"""A request's life, with real engines behind real streams."""

import asyncio

import pytest

from chairlift.cluster.errors import InternalError, ReplicaLost, Unavailable
from support.engines import alone
from support.flights import (
    VOCAB_SIZE,
    embedded_tokenizer,
    ended,
    expected,
    first_token,
    read_all,
    request,
    with_router,
)
from support.replicas import eventually


def test_text_is_what_the_engines_tokens_decode_to():
    async def scenario(router, replica):
        wanted = request((5, 6, 7), max_tokens=200, seed=11)
        flight = await router.submit(wanted)
        (choice,) = await read_all(flight)
        assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted)
        assert (flight.prompt_tokens, flight.output_tokens) == (3, 200)
        assert ended(router) == {"finished": 1}

    with_router(scenario)


def test_the_end_token_counts_but_is_no_text():
    eos = tuple(range(0, VOCAB_SIZE, 20))

    async def scenario(router, replica):
        for seed in range(10):
            wanted = request(max_tokens=500, seed=seed)
            (choice,) = await read_all(await router.submit(wanted))
            assert choice.finish == "stop"
            assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted, eos=eos)

    with_router(scenario, eos=eos)


def test_choices_of_one_request_are_told_apart():
    async def scenario(router, replica):
        wanted = request(n=3, max_tokens=30, seed=5)
        flight = await router.submit(wanted)
        choices = await read_all(flight)
        results = [(choice.text, choice.num_tokens, choice.finish) for choice in choices]
        assert results == [expected(wanted, choice) for choice in range(3)]
        assert len({text for text, _, _ in results}) == 3
        assert flight.output_tokens == 90

    with_router(scenario)


def test_a_stop_string_ends_the_choice_and_frees_its_seat():
    async def scenario(router, replica):
        wanted = request(max_tokens=3000, seed=1)
        whole, _, _ = expected(request(max_tokens=50, seed=1))
        stop = whole[40:44]
        flight = await router.submit(wanted, (stop,))
        (choice,) = await read_all(flight)
        assert choice.text == whole[: whole.index(stop)]
        assert choice.finish == "stop"
        tokens, _ = alone(wanted.prompt, request(max_tokens=50, seed=1).sampling,
                          vocab_size=VOCAB_SIZE)  # fmt: skip
        needed = next(
            count for count in range(51) if stop in embedded_tokenizer().decode(tokens[:count])
        )
        assert choice.num_tokens == flight.output_tokens == needed
        await eventually(lambda: replica.idle)
        assert ended(router) == {"finished": 1}

    with_router(scenario)


def test_a_stop_string_ends_one_choice_and_not_the_others():
    async def scenario(router, replica):
        wanted = request(n=2, max_tokens=40, seed=2)
        stop = expected(wanted, 0)[0][30:36]
        assert stop not in expected(wanted, 1)[0]
        first, second = await read_all(await router.submit(wanted, (stop,)))
        assert first.finish == "stop"
        assert (second.text, second.num_tokens, second.finish) == expected(wanted, 1)

    with_router(scenario)


async def begun(router, replica):
    """A flight with one token, whose engine is held before the next step."""
    replica.gate.close()
    flight = await router.submit(request(max_tokens=3000))
    replica.gate.let_through(1)
    await first_token(flight)
    return flight


def test_leaving_early_frees_the_engine():
    async def scenario(router, replica):
        async with await router.submit(request(n=2, max_tokens=3000)) as flight:
            await first_token(flight)
            assert not replica.idle
        await eventually(lambda: replica.idle)
        assert ended(router) == {"cancelled": 1}
        with pytest.raises(StopAsyncIteration):
            await anext(flight)

    with_router(scenario)


def test_cancelling_the_readers_task_frees_the_engine():
    async def scenario(router, replica):
        reading = asyncio.create_task(read_all(await router.submit(request(max_tokens=3000))))
        await eventually(lambda: router.metrics.generated_tokens > 3)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: replica.idle)
        assert ended(router) == {"cancelled": 1}

    with_router(scenario)


def test_a_turn_that_is_cut_short_loses_nothing():
    """Guards against news that vanish when a reader gives up one turn, as a timeout does."""

    async def scenario(router, replica):
        wanted = request(max_tokens=60)
        flight = await router.submit(wanted)
        text = ""
        with pytest.raises(StopAsyncIteration):
            while True:
                try:
                    async with asyncio.timeout(0):
                        updates = await anext(flight)
                except TimeoutError:
                    await asyncio.sleep(0.001)
                    continue
                text += "".join(update.text for update in updates)
        assert text == expected(wanted)[0]

    with_router(scenario)


def test_a_client_that_goes_while_its_request_waits_frees_its_place():
    async def scenario(router, replica):
        replica.gate.close()
        running = await router.submit(request(max_tokens=50))
        waiting = await router.submit(request(max_tokens=50))
        async with waiting:
            pass
        replica.gate.open()
        await read_all(running)
        assert ended(router) == {"finished": 1, "cancelled": 1}

    with_router(scenario, max_sequences=1)


def test_a_slow_reader_gets_all_its_text_in_few_turns():
    async def scenario(router, replica):
        wanted = request(n=2, max_tokens=300)
        async with await router.submit(wanted) as flight:
            await eventually(lambda: router.metrics.generated_tokens == 600)
            (updates,) = [updates async for updates in flight]
            assert [(u.text, u.num_tokens, u.finish) for u in updates] == [
                expected(wanted, choice) for choice in range(2)
            ]

    with_router(scenario)


def test_a_lost_replica_fails_what_has_begun():
    async def scenario(router, replica):
        flight = await begun(router, replica)
        await replica.server.stop(0)
        with pytest.raises(ReplicaLost) as error:
            await read_all(flight)
        assert error.value.http_status == 502
        assert ended(router) == {"failed": 1}
        await eventually(lambda: not router.replicas()[0].ready)
        with pytest.raises(Unavailable):
            await router.submit(request())
        assert ended(router) == {"failed": 1, "rejected": 1}

    with_router(scenario)


def test_a_request_without_tokens_moves_when_its_replica_is_lost():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        wanted = request(n=2, max_tokens=20)
        reading = asyncio.create_task(read_all(await router.submit(wanted)))
        home, other = (one, two) if one.intake.num_open else (two, one)
        other.gate.open()
        await home.server.stop(0)
        choices = await reading
        assert [(c.text, c.num_tokens, c.finish) for c in choices] == [
            expected(wanted, choice) for choice in range(2)
        ]
        assert ended(router) == {"finished": 1}
        assert router.metrics.resubmitted == 1

    with_router(scenario, replicas=2)


def test_a_request_that_cannot_move_fails_as_lost():
    async def scenario(router, replica):
        replica.gate.close()
        flight = await router.submit(request())
        await replica.server.stop(0)
        with pytest.raises(ReplicaLost):
            await read_all(flight)
        assert ended(router) == {"failed": 1}

    with_router(scenario)


def test_a_replica_that_fails_to_compute_fails_the_request():
    async def scenario(router, replica):
        flight = await begun(router, replica)
        replica.engine.stop()
        replica.gate.open()
        with pytest.raises(InternalError):
            await read_all(flight)
        assert ended(router) == {"failed": 1}

    with_router(scenario)


def test_what_the_worker_cancels_unasked_is_lost():
    async def scenario(router, replica):
        flight = await begun(router, replica)
        replica.intake.cancel(1, [1])
        replica.gate.open()
        with pytest.raises(ReplicaLost):
            await read_all(flight)
        assert ended(router) == {"failed": 1}

    with_router(scenario)


def test_a_request_is_placed_three_times_at_most():
    """Guards against a request that kills one replica after the other."""

    async def scenario(router, *replicas):
        for replica in replicas:
            replica.gate.close()
        reading = asyncio.create_task(read_all(await router.submit(request())))
        for _ in range(3):
            await eventually(lambda: any(replica.intake.num_open for replica in replicas))
            (home,) = (replica for replica in replicas if replica.intake.num_open)
            await home.server.stop(0)
            home.gate.open()
            await eventually(lambda home=home: home.idle)
        with pytest.raises(ReplicaLost):
            await reading
        assert router.metrics.resubmitted == 2
        assert ended(router) == {"failed": 1}

    with_router(scenario, replicas=4)
