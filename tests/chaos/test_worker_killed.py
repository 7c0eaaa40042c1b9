"""What a router does when a worker's process is killed or stopped, without a word of goodbye."""

import asyncio
import signal

import pytest

from chairlift.cluster.config import RouterConfig
from chairlift.router.metrics import Move
from chairlift.router.router import Router
from support.flights import (
    QUICK,
    embedded_tokenizer,
    ended,
    expected,
    read_all,
    request,
    submit,
)
from support.replicas import eventually
from support.worker_process import worker_process

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_worker_ran_goes_on_at_the_other_one(blow):
    async def scenario(router, one, two):
        wanted = [request(max_tokens=300, seed=seed, n=1 + seed % 2) for seed in range(8)]
        flights = [await submit(router, each) for each in wanted]
        heads = []
        for flight in flights:
            heads.append([update for update in await anext(flight)])
        one.process.send_signal(blow)
        for each, flight, head in zip(wanted, flights, heads, strict=True):
            choices = await read_all(flight)
            for update in head:
                choices[update.choice].text = update.text + choices[update.choice].text
                choices[update.choice].num_tokens += update.num_tokens
            for index, choice in enumerate(choices):
                told = (choice.text, choice.num_tokens, choice.finish)
                assert told == expected(each, index)
        assert router.metrics.moved[Move.LOST] > 0
        if blow is signal.SIGSTOP:
            one.process.send_signal(signal.SIGCONT)
            await eventually(lambda: all(view.ready for view in router.replicas()))
            await eventually(lambda: all(view.load.running == 0 for view in router.replicas()))
        assert ended(router) == {"finished": 8}
        router.check_integrity()

    async def main():
        with worker_process("one", step_s=0.002) as one, worker_process("two", step_s=0.002) as two:
            router = Router(embedded_tokenizer(), RouterConfig(), timing=QUICK)
            router.update_members({each.replica_id: each.endpoint for each in (one, two)})
            await eventually(lambda: all(view.ready for view in router.replicas()))
            try:
                await scenario(router, one, two)
            finally:
                await router.close()

    asyncio.run(main())
