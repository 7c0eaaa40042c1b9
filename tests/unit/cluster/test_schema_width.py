import pytest

from chairlift.cluster.grammar import grammar_fault, json_grammar
from chairlift.cluster.schema_width import MAX_WIDTH, width_fault
from support.grammars import byte_grammars


def wide(count, prefix="p", **fields):
    return {"properties": {f"{prefix}{index}": {"type": "null"} for index in range(count)}} | fields


HALF = MAX_WIDTH // 2 + 1
TOO_WIDE = [
    (wide(MAX_WIDTH + 1), "1001"),
    ({"properties": {"a": {"items": wide(MAX_WIDTH + 1)}}}, "at properties.a.items, 1001"),
    ({"anyOf": [wide(HALF), wide(HALF, "q")]}, "1002"),
    ({"allOf": [{"$ref": "#/$defs/a~1b"}, wide(HALF)], "$defs": {"a/b": wide(HALF, "q")}}, "1002"),
    ({"prefixItems": [{}, {"additionalProperties": wide(2000)}]}, "prefixItems[1]"),
]
WIDE = [
    wide(MAX_WIDTH, additionalProperties=False),
    wide(2 * MAX_WIDTH, required=[f"p{index}" for index in range(MAX_WIDTH)]),
    {"properties": {name: wide(HALF) for name in "abc"}},
    {"properties": {"next": {"$ref": "#"}, **wide(HALF)["properties"]}},
    {"$ref": "#"},
    {"const": wide(2 * MAX_WIDTH)},
    {"properties": 3, "required": 4, "anyOf": 5, "$ref": 6},
]


@pytest.mark.parametrize(("schema", "words"), TOO_WIDE)
def test_what_is_too_wide_is_refused_with_its_place(schema, words):
    fault = width_fault(schema)
    assert fault is not None and words in fault
    with pytest.raises(ValueError, match="may be left out, of 1000 at most"):
        json_grammar(schema)


@pytest.mark.parametrize("schema", WIDE)
def test_only_what_may_be_left_out_at_one_place_counts(schema):
    assert width_fault(schema) is None


def test_schemas_that_refer_to_one_another_often_are_counted_once():
    chain = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(200)}
    assert width_fault({"$defs": chain, "$ref": "#/$defs/d0"}) is None


@pytest.mark.parametrize("extra", [False, True])
def test_the_widest_object_can_be_followed_to_its_end(extra):
    schema = wide(MAX_WIDTH, type="object", additionalProperties=extra)
    grammar = json_grammar(schema)
    assert grammar_fault(grammar) is None
    follower = byte_grammars().follow(grammar)
    for byte in b'{"p1": null, "p77": null, "p999": null}':
        mask = int.from_bytes(follower.mask(), "little")
        assert mask >> byte & 1
        follower.take([byte])
    assert follower.mask()
