"""Chat templates."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from chairlift.cluster.errors import InvalidRequest, ModelError
from chairlift.router.chat_template import MAX_SOURCE, ChatTemplate
from chairlift.router.tokenizer import Tokenizer
from support.vocabularies import (
    byte_level_metadata,
    embedded_model,
    tokenizer_of,
    write_gguf,
)

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def embedded() -> ChatTemplate:
    template = ChatTemplate.load(embedded_model(), Tokenizer.load(embedded_model()))
    assert template is not None
    return template


def test_the_embedded_model_s_template_adds_its_system_prompt(embedded):
    assert embedded.render(HELLO) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_an_empty_system_prompt_is_a_system_prompt(embedded):
    messages = [{"role": "system", "content": ""}, *HELLO]
    assert embedded.render(messages, add_generation_prompt=False) == (
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_blocks_leave_no_white_space():
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(HELLO) == "Hello\n"


def test_begin_and_end_tokens_are_variables():
    template = ChatTemplate("{{ bos_token + 'x' + eos_token }}", bos_token="<s>", eos_token=None)
    assert template.render(HELLO) == "<s>x"


@pytest.mark.parametrize("add", [True, False])
def test_the_generation_prompt_is_up_to_the_caller(add):
    template = ChatTemplate("{% if add_generation_prompt %}go{% endif %}")
    assert template.render(HELLO, add_generation_prompt=add) == ("go" if add else "")


def test_json_keeps_letters_of_all_scripts_and_angle_brackets():
    source = "{{ messages[0] | tojson }}{{ [1, 2] | tojson(indent=1) }}"
    message = {"role": "user", "content": "é漢 <b> 'q' &"}
    expected = json.dumps(message, ensure_ascii=False) + "[\n 1,\n 2\n]"
    assert ChatTemplate(source).render([message]) == expected


def test_loops_can_be_left():
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert ChatTemplate(source).render(HELLO) == "01"


def test_the_marks_of_training_templates_change_nothing():
    source = "{% generation %}{{ messages[0].content }}{% endgeneration %}!"
    assert ChatTemplate(source).render(HELLO) == "Hello!"


def test_the_date_comes_from_the_clock_that_is_passed_in():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render(HELLO) == "26 Jul 2024"


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_is_not_offered_is_none(name):
    source = f"{{% if {name} is not none %}}wrong{{% endif %}}ok"
    assert ChatTemplate(source).render(HELLO) == "ok"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'a' + messages[0].content }}", "str"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages.__class__.__mro__ }}", "__class__"),
    ],
)
def test_a_failing_template_is_an_invalid_request_that_names_the_field(source, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        ChatTemplate(source).render([{"role": "user", "content": None}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{{ x | no_such_filter }}"])
def test_a_template_that_is_no_jinja_is_a_model_error(source):
    with pytest.raises(ModelError, match="chat template is wrong in line 1"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% if a %}" * 200 + "{% endif %}" * 200,
        "{% for a in messages %}" * 400 + "{% endfor %}" * 400,
        "{{ " + "(" * 5000 + "a" + ")" * 5000 + " }}",
        "{{ " + "[" * 150 + "]" * 150 + " }}",
        "{{ a" + "+1" * 5000 + " }}",
        "{{ a" + "[0]" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "x" * (MAX_SOURCE + 1),
    ],
    ids=lambda source: source[:24],
)
def test_a_template_that_is_too_deep_or_too_long_is_a_model_error(source):
    with pytest.raises(ModelError, match=r"^the model's chat template [^\n]+$"):
        ChatTemplate(source)


TOKENIZER = tokenizer_of(byte_level_metadata("a b"))


def test_a_gguf_file_may_have_a_template(tmp_path):
    metadata = byte_level_metadata("a b")
    assert ChatTemplate.load(write_gguf(tmp_path / "none.gguf", metadata), TOKENIZER) is None
    metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ eos_token }}"
    template = ChatTemplate.load(write_gguf(tmp_path / "one.gguf", metadata), TOKENIZER)
    assert template is not None
    assert template.render(HELLO) == "<|begin|><|end|>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": "{}"}, None),
        ({"tokenizer_config.json": '{"chat_template": null}'}, None),
        ({"tokenizer_config.json": '{"chat_template": [{"name": ["x"]}, 3]}'}, None),
        ({"tokenizer_config.json": '{"chat_template": "one"}'}, "one"),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {
                        "chat_template": [
                            {"name": "rag", "template": "wrong"},
                            {"name": "default", "template": "named"},
                        ]
                    }
                )
            },
            "named",
        ),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "rag", "template": "x"}]}'}, None),
        (
            {"chat_template.jinja": "é", "tokenizer_config.json": '{"chat_template": "one"}'},
            "é",
        ),
    ],
)
def test_a_folder_may_have_a_template_in_several_places(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    template = ChatTemplate.load(tmp_path, TOKENIZER)
    assert (template and template.render(HELLO)) == expected


def test_a_template_file_that_is_no_text_is_a_model_error(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="UTF-8"):
        ChatTemplate.load(tmp_path, TOKENIZER)
