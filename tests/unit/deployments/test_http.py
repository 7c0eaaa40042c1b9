import asyncio
import logging

import pytest

from chairlift.cluster.errors import Overloaded, ReplicaLost, Unavailable
from chairlift.deployments.front import INLINE_BODY
from chairlift.router.flight import Update
from support.asgi_client import Client, Reply, call, until
from support.engines import replica_info
from support.fake_router import FakeRouter, live_view
from support.http_app import CHAT, CHAT_TOKENS, CONTEXT_LENGTH, MODEL, http_app

CHATS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def get(path: str, router: FakeRouter | None = None, method: str = "GET") -> Reply:
    return asyncio.run(call(http_app(router), method, path))


def post(path: str, body: object, router: FakeRouter | None = None) -> Reply:
    router = router or FakeRouter()
    reply = asyncio.run(call(http_app(router), "POST", path, body))
    router.check_idle()
    return reply


def test_the_model_is_listed_and_found_by_its_name():
    (card,) = get("/v1/models").json()["data"]
    assert card["id"] == MODEL
    assert card["max_model_len"] == CONTEXT_LENGTH
    one = get(f"/v1/models/{MODEL}").json()
    assert (one["id"], one["object"]) == (MODEL, "model")
    reply = get("/v1/models/org/other")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_health_is_good_only_while_a_replica_is_live():
    router = FakeRouter()
    reply = get("/health", router)
    assert reply.status == 200
    assert reply.json()["replicas"] == [
        {
            "id": "r",
            "live": True,
            "running": 1,
            "waiting": 0,
            "blocks_used": 0,
            "blocks_total": 1024,
            "report_age_s": 0.25,
        }
    ]
    router.views = [live_view(replica_info(), ready=False)]
    assert get("/health", router).status == 503
    router.views = []
    reply = get("/health", router)
    assert (reply.status, reply.json()["status"]) == (503, "unavailable")
    reply = get("/-/healthz", router)  # for that the router lives
    assert (reply.status, reply.body) == (200, b"success")
    router.may_sleep = True
    reply = get("/health", router)
    assert (reply.status, reply.json()["status"]) == (200, "asleep")


def test_metrics_are_the_routers_page():
    reply = get("/metrics")
    assert reply.body.startswith(b"chairlift_requests_open")
    assert reply.headers["content-type"].startswith("text/plain; version=")


def test_head_is_get_without_the_body():
    for path in ("/", "/health", "/metrics", "/v1/models"):
        head, full = get(path, method="HEAD"), get(path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers.keys() == full.headers.keys()


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/v1/chat/completions/", 404, None),
        ("GET", "/" + "x" * 5000, 404, None),
        ("GET", CHATS, 405, "POST"),
        ("HEAD", COMPLETIONS, 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("DELETE", f"/v1/models/{MODEL}", 405, "GET"),
        ("OPTIONS", "/", 405, "GET"),
    ],
)
def test_wrong_paths_and_methods_get_an_error_in_the_usual_form(method, path, status, allow):
    reply = get(path, method=method)
    assert (reply.status, reply.headers.get("allow")) == (status, allow)
    if method != "HEAD":
        assert len(reply.error["message"]) < 300


def test_a_chat_in_one_piece():
    router = FakeRouter()
    reply = post(CHATS, CHAT | {"n": 2}, router)
    assert reply.status == 200
    answer = reply.json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello world"] * 2
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert answer["usage"]["prompt_tokens"] == CHAT_TOKENS
    assert answer["usage"]["completion_tokens"] == 10
    assert router.requests[0].n == 2


def test_a_stream_says_the_same_as_one_piece():
    whole = post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2}).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, usage, done = post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2} | options).events()
    joined = dict.fromkeys(range(4), "")
    finishes = []
    for event in events:
        assert event["usage"] is None
        (choice,) = event["choices"]
        joined[choice["index"]] += choice["text"]
        finishes += [(choice["index"], choice["finish_reason"])] * bool(choice["finish_reason"])
    assert list(joined.values()) == [choice["text"] for choice in whole["choices"]]
    assert sorted(finishes) == [(choice, "stop") for choice in range(4)]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert done == "[DONE]"


def test_a_streamed_chat_begins_with_the_role_and_ends_with_done():
    reply = post(CHATS, CHAT | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    *events, done = reply.events()
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    assert done == "[DONE]"


def test_updates_of_one_turn_leave_in_one_send_and_empty_ones_not_at_all():
    def script(request):
        return [
            [Update(0, "a", 1, None), Update(1, "b", 1, None)],
            [Update(0, "", 1, None)],
            [Update(0, "", 1, "stop"), Update(1, "c", 1, "length")],
        ]

    reply = post(COMPLETIONS, {"prompt": "x", "n": 2, "stream": True}, FakeRouter(script))
    assert [piece.count(b"data: ") for piece in reply.pieces] == [2, 3, 1]


def test_the_request_carries_the_clients_id_and_the_response_returns_it():
    router = FakeRouter()
    reply = asyncio.run(call(http_app(router), "POST", CHATS, CHAT, x_request_id="mine"))
    assert reply.headers["x-request-id"] == router.requests[0].id == "mine"
    reply = asyncio.run(call(http_app(router), "POST", CHATS, CHAT))
    assert reply.headers["x-request-id"] == router.requests[1].id


def test_a_replica_that_holds_less_than_the_model_lowers_the_limit():
    router = FakeRouter()
    router.max_sequence_tokens = 20
    assert post(COMPLETIONS, {"prompt": [1] * 19, "max_tokens": 1}, router).status == 200
    reply = post(COMPLETIONS, {"prompt": [1] * 20, "max_tokens": 1}, router)
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert reply.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (Overloaded("full", retry_after_s=0.3), 429, "1"),
        (Unavailable("nobody there"), 503, None),
    ],
)
def test_a_refusal_is_a_status_even_for_a_stream(stream, error, status, retry_after):
    router = FakeRouter()

    def refuse(request):
        raise error

    router.admission = refuse
    reply = post(CHATS, CHAT | {"stream": stream}, router)
    assert reply.status == status
    assert reply.headers.get("retry-after") == retry_after
    assert reply.error["code"] == error.code


def test_a_failure_in_mid_stream_is_the_last_event_and_nothing_is_done():
    router = FakeRouter(lambda request: [[Update(0, "Hello", 2, None)], ReplicaLost("gone")])
    reply = post(CHATS, CHAT | {"stream": True}, router)
    assert (reply.status, reply.complete) == (200, True)
    *_, error = reply.events()
    assert error["error"]["code"] == "replica_lost"
    assert b"[DONE]" not in reply.body


def test_a_failure_without_a_stream_is_a_status():
    router = FakeRouter(lambda request: [[Update(0, "Hello", 2, None)], ReplicaLost("gone")])
    reply = post(CHATS, CHAT, router)
    assert (reply.status, reply.error["code"]) == (502, "replica_lost")


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_is_logged_and_tells_the_client_nothing_of_its_nature(stream, caplog):
    def script(request):
        yield [Update(0, "Hello", 2, None)]
        raise ZeroDivisionError("a secret")

    reply = post(CHATS, CHAT | {"stream": stream}, FakeRouter(script))
    assert reply.status == (200 if stream else 500)
    assert b"internal_error" in reply.body
    assert b"secret" not in reply.body
    assert "a secret" in caplog.text


def test_a_long_body_is_prepared_apart_and_answered_alike():
    body = CHAT | {"metadata": {"a": "x" * (INLINE_BODY + 1)}, "seed": 1}
    assert post(CHATS, body).json()["choices"] == post(CHATS, CHAT).json()["choices"]
    assert post(CHATS, body | {"n": 0}).error["param"] == "n"


class Waiting:
    """A request that has come to a point where it waits for ever."""

    def __init__(self, phase: str, **fields: object) -> None:
        self.router = FakeRouter()
        never = asyncio.Event()
        if phase == "submit":
            self.router.admission = lambda request: never.wait()
            self.reached = lambda: any(flight.queued for flight in self.router.flights)
        else:
            self.router.script = lambda request: [[Update(0, "Hello", 2, None)], never]
            self.reached = lambda: any(flight.waiting for flight in self.router.flights)
        body = [str(CHAT | fields).replace("'", '"').replace("True", "true").encode()]
        self.client = Client(http_app(self.router), "POST", CHATS, body=body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["submit", "generate"])
@pytest.mark.parametrize("how", ["disconnect", "cancel"])
def test_a_client_that_leaves_ends_its_request_at_once(stream, phase, how, caplog):
    """uvicorn tells of a disconnect through ``receive``; Ray Serve cancels the task."""

    async def main():
        waiting = Waiting(phase, **({"stream": True} if stream else {}))
        task = asyncio.create_task(waiting.client.run())
        await until(waiting.reached)
        if how == "disconnect":
            waiting.client.leave()
            await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)
        waiting.router.check_idle()
        assert all(flight.unfinished for flight in waiting.router.flights)
        assert not waiting.client.reply.complete
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert not caplog.records


def test_a_client_that_leaves_while_its_body_arrives_gets_nothing_and_logs_nothing(caplog):
    async def main():
        router = FakeRouter()
        client = Client(http_app(router), "POST", CHATS, body=[b'{"mess'], endless=True)
        client.leave()
        reply = await client.run()
        assert reply.status is None
        assert not router.flights

    asyncio.run(main())
    assert not caplog.records


def test_a_client_that_leaves_a_list_of_prompts_ends_all_of_them():
    async def main():
        never = asyncio.Event()
        router = FakeRouter(lambda request: [[Update(0, "Hello", 2, None)], never])
        body = b'{"prompt":["a","b","c"],"stream":true}'
        client = Client(http_app(router), "POST", COMPLETIONS, body=[body])
        task = asyncio.create_task(client.run())
        await until(lambda: sum(flight.waiting for flight in router.flights) == 3)
        client.leave()
        await task
        router.check_idle()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
