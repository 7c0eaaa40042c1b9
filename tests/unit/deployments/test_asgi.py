import asyncio

import pytest

from chairlift.cluster.errors import (
    BodyTimeout,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from chairlift.deployments.asgi import ClientGone, Exchange, lifespan, refuse_websocket
from support.asgi_client import Client, Reply, until


def exchange(use, *, timeout_s: float = 10.0, max_bytes: int = 8, **options) -> Reply:
    """Run ``use(exchange, body)`` on an exchange whose body was read, or ``use(exchange)``."""

    async def app(scope, receive, send):
        one = Exchange(scope, receive, send)
        await use(one, await one.read_json(max_bytes, timeout_s))

    return asyncio.run(Client(app, "POST", "/", **options).run())


async def echo(one: Exchange, body: bytes) -> None:
    await one.respond(200, body)


def test_a_body_in_pieces_is_read_whole():
    assert exchange(echo, body=[b"ab", b"", b"cd"]).body == b"abcd"
    assert exchange(echo, body=[b"12345678"]).body == b"12345678"


def test_a_body_that_claims_to_be_too_long_is_refused_unread():
    with pytest.raises(PayloadTooLarge):
        exchange(echo, body=[b""], headers={"content-length": "9"}, endless=True)
    with pytest.raises(PayloadTooLarge):
        exchange(echo, body=[b""], headers={"content-length": "9" * 5000}, endless=True)


def test_a_body_that_turns_out_too_long_is_refused_before_its_end():
    with pytest.raises(PayloadTooLarge, match="8 bytes"):
        exchange(echo, body=[b"12345", b"6789"], endless=True)


def test_a_body_that_does_not_arrive_in_time_is_given_up():
    with pytest.raises(BodyTimeout):
        exchange(echo, body=[b"{"], endless=True, timeout_s=0.01)


def test_a_client_that_leaves_before_its_body_was_read_is_no_error_of_the_body():
    async def main():
        async def app(scope, receive, send):
            await Exchange(scope, receive, send).read_json(8, 10.0)

        client = Client(app, "POST", "/", body=[b"{"], endless=True)
        client.leave()
        await client.run()

    with pytest.raises(ClientGone):
        asyncio.run(main())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"content-type": "Application/JSON; charset=UTF-8"},
        {"content-type": "application/vnd.api+json"},
        {"content-encoding": "identity"},
    ],
)
def test_json_and_what_does_not_say_what_it_is_are_read(headers):
    assert exchange(echo, body=[b"{}"], headers=headers).body == b"{}"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "text/plain"},
        {"content-encoding": "gzip"},
    ],
)
def test_what_is_no_json_by_its_own_account_is_refused(headers):
    with pytest.raises(UnsupportedMediaType):
        exchange(echo, body=[b"{}"], headers=headers)


@pytest.mark.parametrize("name", ["abc-123", "a b", "x" * 128])
def test_a_decent_request_id_is_kept_and_sent_back(name):
    assert exchange(echo, headers={"X-Request-Id": name}).headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a\r\nset-cookie: b", "né", "\x00"])
def test_any_other_request_id_is_replaced(name):
    drawn = exchange(echo, headers={"X-Request-Id": name}).headers["x-request-id"]
    assert drawn != name
    assert len(drawn) == 32
    assert drawn != exchange(echo).headers["x-request-id"]


def test_the_prefix_under_which_the_application_is_mounted_is_no_part_of_its_paths():
    scope = {"method": "GET", "path": "/api/v1/models", "root_path": "/api", "headers": []}
    assert Exchange(scope, None, None).path == "/v1/models"


def test_an_error_before_the_response_has_a_status_and_tells_when_to_come_back():
    async def use(one, _body):
        await one.fail(Overloaded("full", retry_after_s=1.2))

    reply = exchange(use)
    assert reply.status == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.error["message"] == "full"


def test_an_error_within_a_stream_is_its_last_event():
    async def use(one, _body):
        await one.start_stream()
        await one.write(b"data: 1\n\n")
        await one.fail(Overloaded("full"))

    reply = exchange(use)
    assert reply.complete
    first, last = reply.events()
    assert first == 1
    assert last["error"]["message"] == "full"


def test_a_slow_body_ends_the_connection_so_that_its_rest_is_not_waited_for():
    async def use(one, _body):
        await one.fail(BodyTimeout("slow"))

    assert exchange(use).headers["connection"] == "close"


def test_work_is_cancelled_when_the_client_leaves():
    seen = []

    async def use(one, _body):
        try:
            async with one.while_client_stays():
                seen.append("started")
                try:
                    await asyncio.Event().wait()
                finally:
                    seen.append("cancelled")
        except ClientGone:
            seen.append("gone")

    async def main():
        async def app(scope, receive, send):
            await use(Exchange(scope, receive, send), b"")
            await asyncio.sleep(0)  # nothing is left of the cancellation

        client = Client(app, "POST", "/", body=[b""])
        task = asyncio.create_task(client.run())
        await until(lambda: bool(seen))
        client.leave()
        await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert seen == ["started", "cancelled", "gone"]


def test_a_server_that_cancels_the_task_is_not_mistaken_for_a_client_that_leaves():
    async def main():
        entered = asyncio.Event()

        async def app(scope, receive, send):
            async with Exchange(scope, receive, send).while_client_stays():
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(Client(app, "POST", "/").run())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_timeout_of_the_work_itself_is_not_mistaken_for_a_client_that_leaves():
    async def use(one, _body):
        async with one.while_client_stays():
            raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        exchange(use)


def test_lifespan_is_answered():
    async def main():
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent = []

        async def receive():
            return next(messages)

        async def send(message):
            sent.append(message["type"])

        await lifespan(receive, send)
        return sent

    assert asyncio.run(main()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_websocket_is_closed_before_its_handshake():
    async def main():
        sent = []

        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            sent.append(message["type"])

        await refuse_websocket(receive, send)
        return sent

    assert asyncio.run(main()) == ["websocket.close"]
