"""Heads that never end, or hold too much: refused, while others are served."""

import asyncio
from collections.abc import Iterable

import pytest

from chairlift.deployments import request_head
from chairlift.deployments.http_server import HttpServer
from chairlift.deployments.request_head import MAX_HEAD_BYTES, MAX_HEADERS
from support.http_app import http_app

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"


def answers(*pieces: bytes, expect: Iterable[bytes]) -> None:
    """What the server says to the pieces, one after another; then it must serve somebody else."""

    async def main() -> None:
        server = HttpServer(http_app(), "127.0.0.1", 0)
        port = await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            for status in expect:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert head.startswith(b"HTTP/1.1 " + status), head
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        finally:
            await server.stop(1.0)

    asyncio.run(main())


@pytest.mark.parametrize(
    "pieces",
    [
        [GET + b"a: " + b"x" * 2**20 + b"\r\n\r\n"],
        [GET + b"a: ", *[b"x" * 1000] * (MAX_HEAD_BYTES // 1000 + 200)],
        [GET + b"".join(b"a%d: x\r\n" % i for i in range(MAX_HEADERS + 1)) + b"\r\n"],
        [b"GET /" + b"x" * 2**20],
        [b"GET /" + b"x" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nhost: x\r\n\r\n"],
    ],
    ids=["one header", "an endless one", "many headers", "an endless path", "a long path"],
)
def test_a_head_that_is_too_long_is_refused(pieces):
    answers(*pieces, expect=[b"431"])


def test_a_long_head_within_the_bounds_and_many_requests_of_one_connection_are_served():
    head = GET + b"a: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\n"
    body = b'{"prompt":"' + b"x" * 60_000 + b'"}'
    post = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    answers(head, b"\r\n", post, post, head + b"\r\n", GET + b"\r\n", expect=[b"200"] * 5)


def test_a_head_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(request_head, "HEAD_TIMEOUT_S", 0.2)
    answers(GET + b"a: ", expect=[b"408"])
    answers(expect=[b"408"])
