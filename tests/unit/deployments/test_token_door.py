import asyncio

import pytest

from chairlift.cluster.config import HttpConfig
from chairlift.deployments.front import INLINE_BODY
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.tokenizer import Tokenizer
from support.asgi_client import Reply, call
from support.fake_tokenizer import BOS
from support.flights import embedded_tokenizer
from support.http_app import CHAT, CHAT_TOKENS, CONTEXT_LENGTH, MODEL, http_app

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


def ask(path: str, body: object, **changes) -> Reply:
    return asyncio.run(call(http_app(**changes), "POST", path, body))


def test_a_prompt_gets_the_special_tokens_unless_they_are_not_wanted():
    reply = ask(TOKENIZE, {"model": MODEL, "prompt": "hi"})
    assert reply.json() == {
        "count": 3,
        "max_model_len": CONTEXT_LENGTH,
        "tokens": [BOS, *b"hi"],
        "token_strs": None,
    }
    assert ask(TOKENIZE, {"prompt": "hi", "add_special_tokens": False}).json()["count"] == 2


def test_messages_are_tokenised_as_a_chat_would_be():
    tokens = ask(TOKENIZE, CHAT).json()["tokens"]
    assert bytes(tokens) == b"user: hi\nassistant:"
    assert len(tokens) == CHAT_TOKENS
    assert ask(TOKENIZE, CHAT | {"add_special_tokens": True}).json()["tokens"] == [BOS, *tokens]


def test_tools_are_told_as_a_chat_would_tell_them():
    tool = {"type": "function", "function": {"name": "weather"}}
    template = ChatTemplate("{{ tools[0].function.name if tools }}!")
    tokens = ask(TOKENIZE, CHAT | {"tools": [tool]}, template=template).json()["tokens"]
    assert bytes(tokens) == b"weather!"
    assert ask(TOKENIZE, CHAT, template=template).json()["count"] == 1


def test_tokens_are_spelt_as_in_the_vocabulary_where_asked():
    reply = ask(TOKENIZE, {"prompt": "hi", "return_token_strs": True}).json()
    assert reply["token_strs"] == ["<bos>", "<68>", "<69>"]
    tokenizer: Tokenizer = embedded_tokenizer()
    (token,) = tokenizer.encode(" the", add_special=False)
    assert tokenizer.entry(token) == "Ġthe"
    assert tokenizer.entry(10**6) == ""


@pytest.mark.parametrize("text", ["", "hi", "<|im_start|>é 漢 👍🏽\n\n  x", "long " * INLINE_BODY])
def test_what_comes_back_is_what_went_in_special_tokens_included(text):
    tokenizer = embedded_tokenizer()
    tokens = ask(TOKENIZE, {"prompt": text}, tokenizer=tokenizer).json()["tokens"]
    assert ask(DETOKENIZE, {"tokens": tokens}, tokenizer=tokenizer).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (TOKENIZE, {}, 400, "prompt"),
        (TOKENIZE, {"prompt": "a", **CHAT}, 400, "prompt"),
        (TOKENIZE, {"prompt": ["a"]}, 400, "prompt"),
        (TOKENIZE, {"messages": []}, 400, "messages"),
        (TOKENIZE, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        (TOKENIZE, {"prompt": "a", "model": "other"}, 404, "model"),
        (TOKENIZE, {"prompt": "a", "temperature": 1}, 400, "temperature"),
        (DETOKENIZE, {}, 400, "tokens"),
        (DETOKENIZE, {"tokens": "1"}, 400, "tokens"),
        (DETOKENIZE, {"tokens": [1, "2"]}, 400, "tokens[1]"),
        (DETOKENIZE, {"tokens": [0, -1]}, 400, "tokens[1]"),
        (DETOKENIZE, {"tokens": [257]}, 400, "tokens[0]"),
        (DETOKENIZE, {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path, body, status, param):
    reply = ask(path, body)
    assert (reply.status, reply.error["param"]) == (status, param)


def test_a_model_without_a_template_has_no_messages_but_prompts():
    assert ask(TOKENIZE, CHAT, template=None).error["param"] == "messages"
    assert ask(TOKENIZE, {"prompt": "a"}, template=None).status == 200


def test_a_body_that_is_too_long_is_refused():
    config = HttpConfig(max_body=1000)
    assert ask(TOKENIZE, {"prompt": "x" * 1000}, config=config).status == 413
