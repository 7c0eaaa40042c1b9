import json

import pytest

from chairlift.cluster.errors import InvalidRequest, Overloaded
from chairlift.deployments.openai_response import (
    Api,
    Choice,
    ResponseHead,
    Usage,
    error_body,
    response_body,
)


@pytest.mark.parametrize(
    ("api", "kind", "content"),
    [
        (
            Api.CHAT,
            "chat.completion",
            {"message": {"role": "assistant", "content": "ab", "refusal": None}},
        ),
        (Api.COMPLETION, "text_completion", {"text": "ab"}),
    ],
)
def test_a_response_has_the_form_that_clients_expect(api, kind, content):
    head = ResponseHead(api, "x-1", 1234, "m", seeds=(7,))
    body = response_body(head, [Choice(["a", "", "b"], finish="stop")], Usage(3, 5, 1), None)
    assert json.loads(body) == {
        "id": "x-1",
        "object": kind,
        "created": 1234,
        "model": "m",
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "chairlift": {"seeds": [7]},
    }


def test_choices_keep_their_order():
    head = ResponseHead(Api.COMPLETION, "x", 0, "m")
    choices = [Choice(["a"], finish="stop"), Choice(["b"], finish="length")]
    body = response_body(head, choices, Usage(1, 2), None)
    choices = json.loads(body)["choices"]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_an_error_has_the_form_that_clients_expect():
    error = InvalidRequest("n: must be 1 or more", param="n")
    assert json.loads(error_body(error)) == {
        "error": {
            "message": "n: must be 1 or more",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }
    assert json.loads(error_body(Overloaded("full")))["error"]["param"] is None
