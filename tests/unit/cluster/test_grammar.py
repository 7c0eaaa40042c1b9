import json

import pytest

from chairlift.cluster.grammar import MAX_GRAMMAR_BYTES, embedded, grammar_fault, json_grammar

NESTED: dict = {}
for _ in range(300):
    NESTED = {"items": NESTED}


@pytest.mark.parametrize(
    "schema",
    [True, {}, {"type": "object"}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}],
)
def test_what_can_be_followed_has_no_fault(schema):
    assert grammar_fault(json_grammar(schema)) is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "not"),
        ({"type": "strin"}, "strin"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "(("}, "unclosed"),
        ({"$ref": "https://example.com/x"}, "example.com"),
        ({"enum": ["x" * MAX_GRAMMAR_BYTES]}, "at most"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "'a'"),
    ],
)
def test_a_fault_says_in_one_line_what_cannot_be_followed(schema, words):
    fault = grammar_fault(json_grammar(schema))
    assert fault is not None and words in fault and "\n" not in fault


def test_a_schema_that_is_nested_too_deeply_is_none():
    with pytest.raises(ValueError, match="is no schema"):
        json_grammar(NESTED)


def test_a_schema_cannot_ask_for_what_it_does_not_understand_to_be_passed_over():
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    assert grammar_fault(json_grammar(schema)) is not None
    assert json.loads(embedded(schema))["x-guidance"]["lenient"] is False
