"""A request's life, with real engines behind real streams."""

import asyncio

import pytest

from chairlift.cluster.errors import ReplicaLost, SuspectRequest, Unavailable
from chairlift.router.metrics import Move
from support.engines import alone
from support.flights import (
    VOCAB_SIZE,
    embedded_tokenizer,
    ended,
    expected,
    first_token,
    read_all,
    request,
    submit,
    with_router,
)
from support.replicas import eventually


def test_text_is_what_the_engines_tokens_decode_to():
    async def scenario(router, replica):
        wanted = request((5, 6, 7), max_tokens=200, seed=11)
        flight = await submit(router, wanted)
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
            (choice,) = await read_all(await submit(router, wanted))
            assert choice.finish == "stop"
            assert (choice.text, choice.num_tokens, choice.finish) == expected(wanted, eos=eos)

    with_router(scenario, eos=eos)


def test_choices_of_one_request_are_told_apart():
    async def scenario(router, replica):
        wanted = request(n=3, max_tokens=30, seed=5)
        flight = await submit(router, wanted)
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
        flight = await submit(router, wanted, (stop,))
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
        first, second = await read_all(await submit(router, wanted, (stop,)))
        assert first.finish == "stop"
        assert (second.text, second.num_tokens, second.finish) == expected(wanted, 1)

    with_router(scenario)


async def begun(router, *replicas, wanted=None, stop=()):
    """A flight with one token, whose engine is held before the next step."""
    for replica in replicas:
        replica.gate.close()
    flight = await submit(router, wanted or request(max_tokens=3000), stop)
    for replica in replicas:
        replica.gate.let_through(1)
    await eventually(lambda: flight.first_token_at is not None)
    return flight


def test_leaving_early_frees_the_engine():
    async def scenario(router, replica):
        async with await begun(router, replica, wanted=request(n=2, max_tokens=3000)) as flight:
            assert not replica.idle
        replica.gate.open()
        await eventually(lambda: replica.idle)
        assert ended(router) == {"cancelled": 1}
        with pytest.raises(StopAsyncIteration):
            await anext(flight)

    with_router(scenario)


def test_cancelling_the_readers_task_frees_the_engine():
    async def scenario(router, replica):
        reading = asyncio.create_task(read_all(await begun(router, replica)))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        replica.gate.open()
        await eventually(lambda: replica.idle)
        assert ended(router) == {"cancelled": 1}

    with_router(scenario)


def test_a_turn_that_is_cut_short_loses_nothing():
    """Guards against news that vanish when a reader gives up one turn, as a timeout does."""

    async def scenario(router, replica):
        wanted = request(max_tokens=60)
        flight = await submit(router, wanted)
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
        running = await submit(router, request(max_tokens=50))
        waiting = await submit(router, request(max_tokens=50))
        async with waiting:
            pass
        replica.gate.open()
        await read_all(running)
        assert ended(router) == {"finished": 1, "cancelled": 1}

    with_router(scenario, max_sequences=1)


def test_a_slow_reader_gets_all_its_text_in_few_turns():
    async def scenario(router, replica):
        wanted = request(n=2, max_tokens=300)
        async with await submit(router, wanted) as flight:
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
            await submit(router, request())
        assert ended(router) == {"failed": 1, "rejected": 1}

    with_router(scenario)


def test_a_request_without_tokens_moves_when_its_replica_is_lost():
    async def scenario(router, one, two):
        one.gate.close()
        two.gate.close()
        wanted = request(n=2, max_tokens=20)
        reading = asyncio.create_task(read_all(await submit(router, wanted)))
        home, other = (one, two) if one.intake.num_open else (two, one)
        other.gate.open()
        await home.server.stop(0)
        choices = await reading
        assert [(c.text, c.num_tokens, c.finish) for c in choices] == [
            expected(wanted, choice) for choice in range(2)
        ]
        assert ended(router) == {"finished": 1}
        assert router.metrics.moved[Move.LOST] == 2

    with_router(scenario, replicas=2)


def test_a_request_that_cannot_move_fails_as_lost():
    async def scenario(router, replica):
        replica.gate.close()
        flight = await submit(router, request())
        await replica.server.stop(0)
        with pytest.raises(ReplicaLost):
            await read_all(flight)
        assert ended(router) == {"failed": 1}

    with_router(scenario)


def test_what_a_replica_fails_to_compute_is_tried_elsewhere():
    async def scenario(router, one, two):
        wanted = request(max_tokens=200)
        one.gate.close()
        two.gate.close()
        flight = await submit(router, wanted)
        home, other = (one, two) if one.intake.num_open else (two, one)
        home.gate.let_through(1)
        await first_token(flight)
        home.engine.stop()  # so its sequences end as failed
        home.gate.open()
        other.gate.open()
        rest = await read_all(flight)
        assert flight.output_tokens == 200 and rest[0].finish == "length"
        assert ended(router) == {"finished": 1}

    with_router(scenario, replicas=2)


def test_what_two_replicas_fail_to_compute_is_suspect():
    async def scenario(router, one, two):
        flight = await begun(router, one, two)
        for _ in range(2):
            await eventually(lambda: one.intake.num_open or two.intake.num_open)
            home = one if one.intake.num_open else two
            home.engine.stop()
            home.gate.open()
            await eventually(lambda home=home: not home.intake.num_open)
        with pytest.raises(SuspectRequest):
            await read_all(flight)
        assert ended(router) == {"failed": 1}

    with_router(scenario, replicas=2)


def test_what_the_worker_cancels_unasked_goes_on():
    async def scenario(router, replica):
        wanted = request(max_tokens=100)
        flight = await begun(router, replica, wanted=wanted)
        replica.intake.cancel(1, [1])
        replica.gate.open()
        await read_all(flight)
        assert flight.output_tokens == 100
        assert ended(router) == {"finished": 1}

    with_router(scenario)


def test_a_request_at_two_deaths_is_not_tried_on_a_third_replica():
    """Guards against a request that kills one replica after the other."""

    async def scenario(router, *replicas):
        for replica in replicas:
            replica.gate.close()
        reading = asyncio.create_task(read_all(await submit(router, request())))
        for _ in range(2):
            await eventually(lambda: any(replica.intake.num_open for replica in replicas))
            (home,) = (replica for replica in replicas if replica.intake.num_open)
            await home.server.stop(0)
            home.gate.open()
            await eventually(lambda home=home: home.idle)
        with pytest.raises(SuspectRequest):
            await reading
        assert router.metrics.moved[Move.LOST] == 1
        assert ended(router) == {"failed": 1}

    with_router(scenario, replicas=4)


@pytest.mark.parametrize(("limit", "code"), [("max_moves", "moves_exhausted"),
                                             ("moves_floor", "retry_budget")])  # fmt: skip
def test_moves_are_bounded(limit, code):
    async def scenario(router, one, two):
        flight = await submit(router, request(max_tokens=3000))
        for cut in range(3):
            (leg,) = {choice.place for choice in flight.choices}
            home = one if leg.stream.replica_id == one.info.replica_id else two
            home.cut()
            await eventually(lambda cut=cut: cut == 2 or sum(router.metrics.moved.values()) > cut)
            so_far = router.metrics.generated_tokens
            await eventually(
                lambda so_far=so_far: (
                    router.metrics.generated_tokens > so_far or flight.outcome is not None
                )
            )
            await eventually(lambda: all(view.ready for view in router.replicas()))
        with pytest.raises(ReplicaLost) as error:
            await read_all(flight)
        assert error.value.code == code
        assert sum(router.metrics.moved.values()) == 2
        assert ended(router) == {"failed": 1}

    settings = {"moves_share": 0.0, "wait_for_replica_s": 20.0} | {limit: 2}
    with_router(scenario, replicas=2, router=settings, step_s=0.002)


def test_an_output_goes_on_where_it_stopped_when_its_replica_is_cut_off():
    """Also for choices apart, and for text that is withheld because of a stop string."""

    async def scenario(router, one, two):
        wanted = request(n=3, max_tokens=120, seed=4)
        stop = expected(wanted, 1)[0][200:212]
        assert all(stop not in expected(wanted, choice)[0] for choice in (0, 2))
        flight = await begun(router, one, two, wanted=wanted, stop=(stop,))
        pieces = ["" for _ in range(3)]
        finishes = {}
        async with flight:
            reading = asyncio.create_task(collect(flight, pieces, finishes))
            for _ in range(2):
                for replica in (one, two):
                    replica.gate.let_through(25)
                await eventually(lambda: router.metrics.generated_tokens > 60)
                (one if one.intake.num_open else two).cut()
                await eventually(lambda: all(view.ready for view in router.replicas()))
            for replica in (one, two):
                replica.gate.open()
            await reading
        for choice in (0, 2):
            text, _, finish = expected(wanted, choice)
            assert pieces[choice] == text
            assert finishes[choice] == finish
        assert pieces[1] == expected(wanted, 1)[0].split(stop)[0]
        assert finishes[1] == "stop"
        assert router.metrics.moved[Move.LOST] >= 3

    with_router(scenario, replicas=2)


async def collect(flight, pieces, finishes):
    async for updates in flight:
        for update in updates:
            pieces[update.choice] += update.text
            if update.finish is not None:
                finishes[update.choice] = update.finish
