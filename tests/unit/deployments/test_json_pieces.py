import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.deployments.json_pieces import MemberScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.sampled_from([None, 1]), st.data())
def test_members_are_found_however_the_text_is_cut(members, indent, data):
    text = json.dumps(members, indent=indent, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text)))
    scanner = MemberScanner()
    assert scanner.feed(text[:cut]) == cut
    assert scanner.feed(text[cut:] + "rest") == len(text) - cut
    assert scanner.ended and not scanner.failed
    assert {key: json.loads(value) for key, value in scanner.values.items()} == members


@given(st.text(alphabet='{}[]":, \\a1'))
def test_anything_can_be_read(text):
    scanner = MemberScanner()
    assert 0 <= scanner.feed(text) <= len(text)


@pytest.mark.parametrize("text", ["x", "{x", '{"a" 1', '{"a":}', '{"a":1]', '{"a":1 "b"', "[1]"])
def test_what_is_no_object_fails(text):
    scanner = MemberScanner()
    scanner.feed(text + "}")
    assert scanner.failed or '"a":1' in text


def test_a_value_can_be_read_while_it_comes():
    scanner = MemberScanner()
    scanner.feed('{"a": {"b": [1, "}')
    assert (scanner.key, scanner.complete, scanner.values) == ("a", False, {"a": '{"b": [1, "}'})
    scanner.feed('"]}')
    assert (scanner.complete, scanner.ended) == (True, False)
