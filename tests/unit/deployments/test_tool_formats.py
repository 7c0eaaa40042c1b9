import pytest

from chairlift.deployments.tool_formats import (
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    chosen_format,
)


@pytest.mark.parametrize(
    ("asked", "template", "form"),
    [
        ("auto", "{{ messages }}", HERMES),
        ("auto", '… <tool_call> … "parameters" …', HERMES),
        ("auto", '… {"name": function name, "parameters": …', LLAMA3),
        ("auto", "… <|python_tag|> …", LLAMA3),
        ("auto", "… [TOOL_CALLS] …", MISTRAL),
        ("auto", "… [TOOL_CALLS] … [ARGS] …", MISTRAL_ARGS),
        ("llama3", "… [TOOL_CALLS] …", LLAMA3),
    ],
)
def test_the_template_tells_the_format_unless_somebody_does(asked, template, form):
    assert chosen_format(asked, template) is form


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (HERMES, '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'),
        (LLAMA3, '{"name": "look", "parameters": {"at": 1}}'),
        (MISTRAL, '[{"name": "look", "arguments": {"at": 1}}]'),
        (MISTRAL_ARGS, '[TOOL_CALLS]look[ARGS]{"at": 1}'),
    ],
)
def test_calls_are_written_as_the_model_would(form, written):
    assert form.written("look", {"at": 1}) == written
