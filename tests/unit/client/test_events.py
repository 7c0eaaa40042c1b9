import json

import pytest

from chairlift.client.errors import BadAnswer, DeadlineExceeded, Interrupted, error_response
from chairlift.client.events import MAX_EVENT, Events
from chairlift.client.reading import read_answer, read_deltas
from chairlift.client.results import Delta, TokenLogprob, ToolCall, ToolCallDelta, Usage

TEXTS = ["a\u2028b", "\x85", "é😀", "", "end"]


def event(value):
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(**choice):
    return {"choices": [{"index": 0, **choice}]}


STREAM = (
    event(chunk(delta={"role": "assistant", "content": ""}))
    + b"".join(event(chunk(delta={"content": text})) for text in TEXTS)
    + event(chunk(delta={}, finish_reason="stop"))
    + event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
    + b": a remark\n\ndata: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_the_same_in_whatever_pieces_they_come(size, newline):
    stream = STREAM.replace(b"\n", newline)
    events = Events("r", "7,8")
    deltas = []
    for start in range(0, len(stream), size):
        deltas += events.feed(stream[start : start + size])
    events.end()
    assert [delta.text for delta in deltas] == [*filter(None, TEXTS), ""]
    assert deltas[-1].finish_reason == "stop"
    assert (events.done, events.fault) == (True, None)
    assert (events.usage, events.seeds) == (Usage(3, 5), (7, 8))


def test_what_came_before_a_fault_counts():
    events = Events("r")
    error = {"error": {"message": "late", "code": "deadline_exceeded"}}
    assert events.feed(event(chunk(text="a")) + event(error)) == [Delta(0, "a")]
    assert isinstance(events.fault, DeadlineExceeded)
    assert events.fault.request_id == "r"


def test_a_stream_that_breaks_off_or_is_none_is_a_fault():
    events = Events("r")
    events.end()
    assert isinstance(events.fault, Interrupted)
    for nonsense in (b"data: 7\n\n", b"data: {\n\n", b"x" * (MAX_EVENT + 1)):
        events = Events("r")
        assert events.feed(nonsense) == []
        assert isinstance(events.fault, BadAnswer)


def test_tool_calls_and_log_probabilities_of_chats():
    logprobs = {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}],
            }
        ]
    }
    function = {"name": "weather", "arguments": "{}"}
    message = {
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": logprobs}
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    body = {"id": "x", "model": "m", "choices": [choice], "usage": usage}
    answer = read_answer({**body, "chairlift": {"seeds": [4]}}, "r")
    assert answer.choices[0].tool_calls == (ToolCall("c1", "weather", "{}"),)
    assert answer.choices[0].logprobs == (TokenLogprob("a", -0.5, (("b", -1.0),), b"a"),)
    assert (answer.text, answer.usage, answer.seeds) == ("", Usage(1, 2, 1), (4,))
    piece = {"index": 1, "function": {"arguments": '{"ci'}}
    assert read_deltas(chunk(delta={"tool_calls": [piece]})) == [
        Delta(0, tool_calls=(ToolCallDelta(1, None, None, '{"ci'),))
    ]


def test_log_probabilities_of_completions():
    columns = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -1.0, "c": -2.0}],
        "text_offset": [0, 1],
    }
    (delta,) = read_deltas(chunk(text="ab", logprobs=columns))
    assert delta.logprobs == (
        TokenLogprob("a", None),
        TokenLogprob("b", -1.0, (("b", -1.0), ("c", -2.0))),
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("nan", None), ("soon", None), (None, None)],
)
def test_when_to_come_back(header, seconds):
    headers = {} if header is None else {"retry-after": header}
    assert error_response(503, headers, b"", "r").retry_after_s == seconds


def test_a_date_to_come_back_may_be_over():
    headers = {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert error_response(503, headers, b"no JSON", "r").retry_after_s == 0.0
