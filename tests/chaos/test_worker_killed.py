"""What a router does when a worker's process is killed, without a word of goodbye."""

import asyncio

import pytest

from chairlift.cluster.errors import ReplicaLost
from chairlift.router.router import Router
from support.flights import (
    QUICK,
    embedded_tokenizer,
    ended,
    expected,
    first_token,
    read_all,
    request,
)
from support.replicas import eventually
from support.worker_process import worker_process

pytestmark = pytest.mark.chaos


def test_killing_a_worker_fails_what_it_ran_and_moves_what_had_not_begun():
    async def scenario(router, one, two):
        flights = [await router.submit(request(max_tokens=300, seed=s)) for s in range(8)]
        for flight in flights:
            await first_token(flight)
        late = [await router.submit(request([5] * 1000, max_tokens=4)) for _ in range(8)]
        one.process.kill()
        outcomes = await asyncio.gather(
            *(read_all(flight) for flight in flights), return_exceptions=True
        )
        lost = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert 0 < len(lost) < len(flights)
        assert {type(error) for error in lost} == {ReplicaLost}
        wanted = expected(request([5] * 1000, max_tokens=4))
        for flight in late:
            (choice,) = await read_all(flight)
            assert (choice.text, choice.num_tokens, choice.finish) == wanted
        router.check_integrity()
        assert router.metrics.resubmitted > 0
        assert ended(router) == {"finished": 16 - len(lost), "failed": len(lost)}

    async def main():
        with worker_process("one", step_s=0.002) as one, worker_process("two", step_s=0.002) as two:
            router = Router(embedded_tokenizer(), max_requests=100, timing=QUICK)
            router.update_members({each.replica_id: each.endpoint for each in (one, two)})
            await eventually(lambda: all(view.ready for view in router.replicas()))
            try:
                await scenario(router, one, two)
            finally:
                await router.close()

    asyncio.run(main())
