import asyncio

from chairlift.evaluation.drill_load import Load, load_source, p99
from support.openai_server import ScriptedServer, serving


def drive(coroutine_of, **options):
    async def main(url: str):
        async with load_source(
            url, Load("uniform:2,9", "uniform:1,3", seed=5), **options
        ) as source:
            return await coroutine_of(source)

    server = ScriptedServer()
    with serving(server) as url:
        return asyncio.run(main(url)), server.bodies


def test_phases_follow_each_other_and_the_same_seed_asks_for_the_same():
    phases = (100.0, 0.2), (400.0, 0.1)
    one, bodies = drive(lambda source: source.open(*phases))
    other, same_bodies = drive(lambda source: source.open(*phases))
    assert [r.intended for r in one] == [r.intended for r in other] != []
    assert [r.intended for r in one] == sorted(r.intended for r in one)
    assert any(r.intended < 0.2 for r in one) and any(0.2 <= r.intended < 0.3 for r in one)
    assert sorted(map(str, bodies)) == sorted(map(str, same_bodies))
    assert all(2 <= len(body["prompt"]) <= 9 and body["stream"] for body in bodies)


def test_what_is_under_way_when_patience_ends_is_interrupted():
    async def slow(request, body):
        await asyncio.sleep(30.0)

    async def main(url: str):
        async with load_source(url, Load("constant:2", "constant:1")) as source:
            records = await source.open((50.0, 0.1), patience_s=0.1)
            return records, source.in_flight

    with serving(ScriptedServer(slow)) as url:
        records, in_flight = asyncio.run(main(url))
    assert records and {record.failure for record in records} == {"interrupted"}
    assert in_flight == 0


def test_a_closed_loop_ends_with_its_time():
    records, _ = drive(lambda source: source.closed(2, 0.2))
    assert records and all(record.failure is None for record in records)


def test_p99_of_nothing_is_unknown():
    assert p99([]) is None
    assert p99(range(1, 101)) == 99
