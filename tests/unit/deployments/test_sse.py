import json

import pytest

from chairlift.cluster.errors import ReplicaLost
from chairlift.deployments.openai_response import Api, ResponseHead, Usage
from chairlift.deployments.sse import DONE, ChunkEncoder, error_event

CHAT = ResponseHead(Api.CHAT, "chatcmpl-1", 1234, "m")
COMPLETION = ResponseHead(Api.COMPLETION, "cmpl-1", 1234, "m")
CHAT_START = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1234,"model":"m",'
    b'"choices":['
)
COMPLETION_START = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1234,"model":"m","choices":['
)


def data(event: bytes) -> dict:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2, "an event is one line"
    return json.loads(event[6:])


def test_the_bytes_of_a_chat():
    encoder = ChunkEncoder(CHAT, 2, include_usage=False)
    role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    assert encoder.opening() == (
        CHAT_START + b'{"index":0,' + role + CHAT_START + b'{"index":1,' + role
    )
    assert encoder.text(1, "Hi") == CHAT_START + (
        b'{"index":1,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert encoder.finish(0, "length") == CHAT_START + (
        b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
    )


def test_the_bytes_of_a_completion():
    encoder = ChunkEncoder(COMPLETION, 1, include_usage=False)
    assert encoder.opening() == b""
    assert encoder.text(0, "Hi") == COMPLETION_START + (
        b'{"index":0,"text":"Hi","logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert encoder.finish(0, "stop") == COMPLETION_START + (
        b'{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
    )


@pytest.mark.parametrize(
    ("head", "start", "text", "empty"),
    [
        (CHAT, CHAT_START, b'"delta":{"content":"Hi"}', b'"delta":{}'),
        (COMPLETION, COMPLETION_START, b'"text":"Hi"', b'"text":""'),
    ],
)
def test_the_bytes_of_log_probabilities(head, start, text, empty):
    encoder = ChunkEncoder(head, 1, include_usage=True)
    assert encoder.text(0, "Hi", b'{"x":[1]}') == start + (
        b'{"index":0,' + text + b',"logprobs":{"x":[1]},"finish_reason":null}],"usage":null}\n\n'
    )
    assert encoder.finish(0, "stop", b'{"x":[1]}') == start + (
        b'{"index":0,' + empty + b',"logprobs":{"x":[1]},"finish_reason":"stop"}],"usage":null}\n\n'
    )


def test_the_bytes_of_the_usage_with_what_it_takes_to_get_the_same_again():
    head = ResponseHead(Api.COMPLETION, "cmpl-1", 1234, "m", seeds=(7, 2**53 - 1))
    encoder = ChunkEncoder(head, 2, include_usage=True)
    assert encoder.usage(Usage(3, 5)) == COMPLETION_START + (
        b'],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,'
        b'"prompt_tokens_details":{"cached_tokens":0}},'
        b'"chairlift":{"seeds":[7,9007199254740991]}}\n\n'
    )


@pytest.mark.parametrize("head", [CHAT, COMPLETION])
def test_who_asks_for_usage_finds_it_in_every_chunk_and_not_null_in_the_last(head):
    encoder = ChunkEncoder(head, 1, include_usage=True)
    chunks = [encoder.text(0, "x"), encoder.finish(0, "stop")]
    if opening := encoder.opening():
        chunks.append(opening)
    assert all(data(chunk)["usage"] is None for chunk in chunks)
    last = data(encoder.usage(Usage(3, 5, 2)))
    assert last.pop("chairlift") == {"seeds": []}
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert last.keys() == data(chunks[0]).keys()


@pytest.mark.parametrize("text", ['"quoted"\\', "a\n\ndata: b\r\n", "\u2028\x00\x85", "né 漢字 🎉"])
def test_any_text_stays_within_its_event_and_comes_out_as_it_went_in(text):
    encoder = ChunkEncoder(CHAT, 1, include_usage=False)
    chunk = encoder.text(0, text)
    assert data(chunk)["choices"][0]["delta"]["content"] == text
    assert len(chunk.splitlines()) == 2


def test_an_error_is_an_event_of_its_own():
    error = data(error_event(ReplicaLost("gone")))["error"]
    assert error == {
        "message": "gone",
        "type": "server_error",
        "param": None,
        "code": "replica_lost",
    }
    assert DONE == b"data: [DONE]\n\n"
