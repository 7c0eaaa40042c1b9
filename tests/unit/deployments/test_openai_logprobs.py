import json
import math

import pytest

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.deployments.openai_logprobs import (
    TokenForms,
    chat_logprobs,
    completion_logprobs,
)
from chairlift.router.scored_text import ScoredToken
from support.fake_tokenizer import FakeTokenizer
from support.vocabularies import byte_level_metadata, tokenizer_of

BYTES = tokenizer_of(byte_level_metadata("Ã ©"))
END, BYTE_0, E_ACUTE = 1, 2, 258
A, C3, A9 = (BYTE_0 + byte for byte in b"a\xc3\xa9")

TOKENS = [
    ScoredToken(A, 0, TokenLogprobs(-0.5, ((A, -0.5), (E_ACUTE, -1.0)))),
    ScoredToken(C3, 1, TokenLogprobs(-2.0, ((A9, -1.5), (C3, -2.0)))),
    ScoredToken(END, 2, TokenLogprobs(-math.inf, ((A, 0.0), (END, -math.inf)))),
]


def written(make, tokens, tokenizer=BYTES, before=0):
    writer = make(TokenForms(tokenizer))
    return json.loads(writer.value([writer.columns(tokens, before)]))


def test_a_chats_tokens_have_their_text_their_bytes_and_the_likeliest():
    assert written(chat_logprobs, TOKENS) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "é", "logprob": -1.0, "bytes": [0xC3, 0xA9]},
                ],
            },
            {
                "token": "\ufffd",
                "logprob": -2.0,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [0xA9]},
                    {"token": "\ufffd", "logprob": -2.0, "bytes": [0xC3]},
                ],
            },
            {
                "token": "<|end|>",
                "logprob": -9999.0,
                "bytes": [],
                "top_logprobs": [
                    {"token": "a", "logprob": 0.0, "bytes": [97]},
                    {"token": "<|end|>", "logprob": -9999.0, "bytes": []},
                ],
            },
        ],
        "refusal": None,
    }


def test_a_completions_tokens_stand_in_four_lists():
    first = ScoredToken(E_ACUTE, 0, None)
    assert written(completion_logprobs, [first, *TOKENS], before=7) == {
        "tokens": ["é", "a", "\ufffd", "<|end|>"],
        "token_logprobs": [None, -0.5, -2.0, -9999.0],
        "top_logprobs": [
            None,
            {"a": -0.5, "é": -1.0},
            {"\ufffd": -1.5},
            {"a": 0.0, "<|end|>": -9999.0},
        ],
        "text_offset": [7, 7, 8, 9],
    }


def test_a_completions_likeliest_always_hold_the_token_itself():
    unlikely = [ScoredToken(A, 0, TokenLogprobs(-5.0, ((E_ACUTE, -0.5),)))]
    assert written(completion_logprobs, unlikely)["top_logprobs"] == [{"é": -0.5, "a": -5.0}]
    alone = [ScoredToken(A, 0, TokenLogprobs(-5.0))]
    assert written(completion_logprobs, alone)["top_logprobs"] == [{"a": -5.0}]
    assert written(chat_logprobs, alone)["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize("make", [chat_logprobs, completion_logprobs])
@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30, -9999.5])
def test_every_number_is_finite(make, value):
    token = ScoredToken(A, 0, TokenLogprobs(value, ((A, value), (C3, value))))
    text = json.dumps(written(make, [token]))
    assert text.count("-9999.0") == 3


@pytest.mark.parametrize("make", [chat_logprobs, completion_logprobs])
def test_parts_make_the_same_value_as_all_at_once(make):
    writer = make(TokenForms(FakeTokenizer()))
    parts = [writer.columns(TOKENS[:1]), writer.columns(TOKENS[1:])]
    assert writer.value(parts) == writer.value([writer.columns(TOKENS)])
    empty = json.loads(writer.value([]))
    assert [value for value in empty.values() if value is not None] == [[]] * (
        1 if make is chat_logprobs else 4
    )
