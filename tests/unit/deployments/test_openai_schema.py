import orjson
import pytest

from chairlift.cluster.errors import InvalidRequest, UnsupportedParameter
from chairlift.deployments.openai_schema import ChatBody, CompletionBody, parse_body

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def completion(**fields) -> CompletionBody:
    return parse_body(CompletionBody, orjson.dumps({"prompt": "hi"} | fields))


def chat(**fields) -> ChatBody:
    return parse_body(ChatBody, orjson.dumps({"messages": [USER]} | fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", "2"),
        ("n", True),
        ("n", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "16"),
        ("temperature", -1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 2),
        ("seed", 0.5),
        ("seed", "1"),
        ("stop", ""),
        ("stop", 5),
        ("stop", {}),
        ("stop", ["x"] * 65),
        ("stop", "x" * 257),
        ("stop_token_ids", 5),
        ("stop_token_ids", [1] * 1025),
        ("ignore_eos", 1),
        ("presence_penalty", 3),
        ("presence_penalty", "1"),
        ("frequency_penalty", -3),
        ("frequency_penalty", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", -0.0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 2.1),
        ("repetition_penalty", True),
        ("min_tokens", -1),
        ("min_tokens", 0.5),
        ("allowed_token_ids", []),
        ("allowed_token_ids", 5),
        ("logit_bias", []),
        ("logit_bias", 5),
        ("logit_bias", {"AI": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"": 1}),
        ("logit_bias", {" 1": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {"+1": 1}),
        ("logit_bias", {"1.0": 1}),
        ("logit_bias", {"١": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"1": 1000}),
        ("logit_bias", {"1": -100.5}),
        ("logit_bias", {"1": 2**63}),
        ("logit_bias", {"1": "1"}),
        ("logit_bias", {"1": "NaN"}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {"1": [1]}),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("logit_bias", {str(token): 1000 for token in range(10_000)}),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", 10**9),
        ("logprobs", True),
        ("logprobs", "1"),
        ("echo", 1),
        ("echo", "true"),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
        ("cache_salt", 5),
        ("stream", "true"),
        ("stream_options", {"include_usage": True}),
        ("model", 5),
        ("best_of", 0),
        ("best_of", "x"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param == field
    assert field in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_value_of_a_chat_is_refused_by_the_name_of_its_field(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_echo_is_not_offered_in_chats_nor_top_logprobs_in_completions():
    for ask, name in ((chat, "echo"), (completion, "top_logprobs")):
        with pytest.raises(UnsupportedParameter) as caught:
            ask(**{name: True})
        assert caught.value.param == name


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt":"hi","temperature":%s}', "temperature"),
        (b'{"prompt":"hi","logit_bias":{"5":%s}}', "logit_bias"),
        (b'{"prompt":"hi","n":1,"stop":[{"a":[1,%s]}],"top_p":%s}', "stop"),
        (b'{"prompt":"hi","\\ud800":%s}', None),
        (b'{"a b":%s}', None),
        (b"[%s]", None),
        (b'{"temperature":%s', None),
        (b'{"top_p":%s,"x":"' + b"y" * 70_000 + b'"}', None),
    ],
    ids=str,
)
def test_a_number_that_json_does_not_have_is_refused_by_the_name_of_its_field(body, param, literal):
    with pytest.raises(InvalidRequest) as caught:
        parse_body(CompletionBody, body.replace(b"%s", literal))
    assert (caught.value.param, caught.value.code) == (param, "invalid_json")


def test_no_tokens_are_generated_only_for_an_echo():
    assert completion(max_tokens=0, echo=True).max_tokens == 0
    for fields, param in (
        ({}, "max_tokens"),
        ({"echo": False}, "max_tokens"),
        ({"echo": True, "min_tokens": 1}, "min_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            completion(max_tokens=0, **fields)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": ["x", 5]}, "stop[1]"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
        ({"stream": True, "stream_options": 5}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": [5.5]}, "prompt"),
        ({"prompt": ["hi", 5]}, "prompt[1]"),
        ({"prompt": [5, "hi"]}, "prompt[1]"),
        ({"prompt": [[5], "hi"]}, "prompt[1]"),
        ({"prompt": [[5, "6"]]}, "prompt[0][1]"),
        ({"prompt": [[5, True]]}, "prompt[0][1]"),
    ],
)
def test_the_place_of_a_fault_is_written_as_clients_write_it(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([USER] * 2049, "messages"),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}] * 2049}],
            "messages[0].content",
        ),
        ([USER, 5], "messages[1]"),
        ([USER, {"content": "hi"}], "messages[1].role"),
        ([{"role": "martian", "content": "hi"}], "messages[0].role"),
        ([{"role": "function", "name": "f", "content": "hi"}], "messages[0].role"),
        ([{"role": "tool", "content": "hi"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "tool_call_id": "x"}], "messages[0].content"),
        ([{"role": "tool", "tool_call_id": 5, "content": "hi"}], "messages[0].tool_call_id"),
        ([USER | {"tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [CALL] * 129}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}],
            "messages[0].tool_calls[0].type",
        ),
        (
            [{"role": "assistant", "tool_calls": [CALL, CALL | {"function": {}}]}],
            "messages[0].tool_calls[1].function.name",
        ),
        ([{"role": "assistant", "content": "", "refusal": "no"}], "messages[0].refusal"),
        ([{"role": "assistant", "audio": {"id": "x"}}], "messages[0].audio"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": 5, "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
            "messages[0].content[1].type",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
            "messages[0].tool_calls[0].function",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages, param):
    with pytest.raises(InvalidRequest) as caught:
        chat(messages=messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "x"}),
        ("best_of", 2),
        ("functions", [{}]),
        ("function_call", {"name": "x"}),
        ("guided_regex", "a+"),
        ("modalities", ["text", "audio"]),
        ("moderation", {"model": "x"}),
        ("reasoning_effort", "high"),
        ("skip_special_tokens", False),
        ("skip_special_tokens", 1),
        ("verbosity", "low"),
        ("prediction", {"type": "content"}),
        ("prompt_logprobs", 0),
        ("response_format", {"type": "json_object"}),
        ("response_format", "text"),
        ("suffix", "."),
        ("tool_choice", "required"),
        ("tools", [{}]),
        ("top_logprobs", 10**9),
        ("use_beam_search", True),
    ],
)
def test_what_would_change_the_answer_but_is_not_offered_is_refused_by_name(field, value):
    with pytest.raises(UnsupportedParameter) as caught:
        completion(**{field: value})
    assert caught.value.param == field
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {}, "logprobs": False, "top_logprobs": 0, "echo": False, "suffix": ""},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"tools": [], "tool_choice": "auto", "functions": None, "function_call": "none"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "none"},
        {"n": 2, "best_of": 2},
        {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"safety_identifier": "x", "prompt_cache_key": "x", "prompt_cache_retention": "24h"},
        {"reasoning_effort": "none", "verbosity": "medium", "moderation": None},
        {"skip_special_tokens": True, "length_penalty": 1.0, "truncate_prompt_tokens": None},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_what_asks_for_nothing_or_changes_nothing_is_accepted(fields):
    assert completion(**fields).prompt == "hi"
    assert chat(**fields).messages[0].text == "hi"


@pytest.mark.parametrize("name", ["temprature", "", "x" * 10_000, "Model", "é\n"])
def test_a_field_that_nobody_knows_is_refused_for_it_may_be_misspelt(name):
    for ask in (chat, completion):
        with pytest.raises(InvalidRequest) as caught:
            ask(**{name: 1})
        assert (caught.value.param, caught.value.code) == (name[:100], "unknown_parameter")


def test_null_means_the_default_in_every_field():
    nulls = dict.fromkeys(set(CompletionBody.model_fields) - {"prompt"})
    assert completion(**nulls) == completion()
    nulls = dict.fromkeys(set(ChatBody.model_fields) - {"messages"})
    assert chat(**nulls) == chat()


def test_an_integer_may_be_written_with_a_fraction_of_zero():
    body = completion(n=2.0, max_tokens=5.0, seed=7.0, top_k=3.0)
    assert (body.n, body.max_tokens, body.seed, body.top_k) == (2, 5, 7, 3)


@pytest.mark.parametrize("number", [b"-9223372036854775809", b"1e18", b"18446744073709551616"])
def test_a_seed_that_a_float_cannot_tell_from_its_neighbours_is_refused(number):
    with pytest.raises(InvalidRequest) as caught:
        parse_body(CompletionBody, b'{"prompt":"hi","seed":%s}' % number)
    assert caught.value.param == "seed"


@pytest.mark.parametrize("seed", [-(2**63), 0, 2**63, 2**64 - 1])
def test_every_seed_of_64_bits_is_accepted(seed):
    assert completion(seed=seed).seed == seed


def test_content_is_text_parts_joined_or_nothing_for_an_assistant():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": ""},
    ]
    assert [message.text for message in chat(messages=messages).messages] == ["ab", "", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"prompt":"\xed\xa0\x80"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"hi","temperature":NaN}',
        b'{"prompt":"hi","temperature":Infinity}',
        b'{"prompt":"hi","temperature":1e999}',
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidRequest) as caught:
        parse_body(CompletionBody, body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("depth", [65, 1000, 5000, 10_000])
@pytest.mark.parametrize("field", ["prompt", "metadata", "response_format", "unknown"])
def test_what_is_nested_too_deep_is_refused_by_its_field(field, depth):
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        deep = opening * depth + b"1" + closing * depth
        with pytest.raises(InvalidRequest, match="nested") as caught:
            parse_body(CompletionBody, b'{"prompt":"[\\"[","%s":%s}' % (field.encode(), deep))
        assert caught.value.param == field


def test_what_is_nested_less_deep_is_read():
    deep = b"[" * 64 + b"]" * 64
    assert parse_body(CompletionBody, b'{"prompt":"hi","metadata":%s}' % deep).prompt == "hi"


@pytest.mark.parametrize(
    "body", [b'{"' + b'\\"' * 30_000, b'{"a":' + b'"' * 65_000, b"{" + b"[" * 65_000]
)
def test_a_body_that_is_no_json_is_searched_for_its_fault_in_no_time(body):
    with pytest.raises(InvalidRequest):
        parse_body(CompletionBody, body)


def test_the_last_of_duplicate_keys_wins():
    assert parse_body(CompletionBody, b'{"prompt":"a","prompt":"b"}').prompt == "b"
