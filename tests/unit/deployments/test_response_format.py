import orjson
import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_schema import ChatBody, parse_body
from chairlift.deployments.response_format import checked_grammar, schema_of
from support.http_app import CHAT


def parsed(response_format):
    return parse_body(ChatBody, orjson.dumps(CHAT | {"response_format": response_format}))


def schema_body(**changes):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {}} | changes}


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (schema_body(schema={"type": "null"}, strict=True, description="d"), {"type": "null"}),
        (schema_body(schema=True), True),
    ],
)
def test_a_format_is_a_schema_or_any_text(asked, schema):
    assert schema_of(parsed(asked).response_format) == schema


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ("json", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        (schema_body(name=""), "response_format.json_schema.name"),
        (schema_body(schema="x"), "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "n"}},
            "response_format.json_schema.schema",
        ),
        ({"type": "json_schema"}, "response_format.json_schema"),
    ],
)
def test_what_is_no_format_is_refused_by_its_place(asked, param):
    with pytest.raises(InvalidRequest) as error:
        schema_of(parsed(asked).response_format)
    assert error.value.param is not None and error.value.param.startswith(param)


def test_a_schema_that_cannot_be_kept_to_is_refused_with_the_reason():
    with pytest.raises(InvalidRequest, match=r"where: .*uniqueItems") as error:
        checked_grammar({"type": "array", "uniqueItems": True}, "where")
    assert error.value.param == "where"
