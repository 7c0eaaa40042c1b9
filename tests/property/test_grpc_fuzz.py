"""Whatever bytes a message holds, the answer is one of the API or an error of the client."""

import asyncio
import contextlib
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.grpc_messages import STREAM, UNARY, ask, messages
from fuzz.target import Refused
from support.fake_router import FakeRouter
from support.grpc_front import grpc_front

sendings = st.lists(st.tuples(st.sampled_from(UNARY), messages), max_size=25)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sendings)
def test_no_message_is_a_fault_of_the_server(sent):
    async def main() -> None:
        router = FakeRouter()
        async with grpc_front(router) as channel, asyncio.timeout(20.0):
            for path, data in sent:
                with contextlib.suppress(Refused):
                    await ask(channel, path, data)
            with contextlib.suppress(Refused):
                await ask(channel, STREAM, *[data for _, data in itertools.islice(sent, 5)])
        router.check_idle()

    asyncio.run(main())
