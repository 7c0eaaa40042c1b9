"""YAML that is damaged, or made to cost much."""

from pathlib import Path

import pytest

from chairlift.cluster.config import load_config
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.yaml_text import MAX_DEPTH, parse_yaml, read_yaml


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    for level in range(levels):
        lines.append(f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "a: 2026-99-99",
        "a: !!int x",
        "a: !!int ''",
        "a: !!float x",
        "a: !!timestamp x",
        "a: " + "9" * 5000,
        "a: [",
        "? [a]\n: b",
        "[" * 20_000 + "]" * 20_000,
        "- " * 20_000,
    ],
)
def test_what_is_no_yaml_is_refused_in_a_line(text):
    with pytest.raises(ConfigError, match=r"^here is not YAML: [^\n]+$"):
        parse_yaml(text, "here")


def test_anchors_may_be_used_but_not_to_grow_without_end():
    assert parse_yaml("a: &x [1, 2]\nb: *x", "here") == {"a": [1, 2], "b": [1, 2]}
    for text in (bomb(12), "a: &a [*a]"):
        with pytest.raises(ConfigError, match="here comes to more than"):
            parse_yaml(text, "here")


def test_depth_is_counted_within_and_not_along():
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert len(parse_yaml(f"[{deep}, {deep}]", "here")) == 2
    assert len(parse_yaml("[" + "[[]], " * 1000 + "]", "here")) == 1000


def test_a_file_that_is_no_text_is_named(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML"):
        read_yaml(path)


def test_a_variable_that_is_no_yaml_is_named():
    with pytest.raises(ConfigError, match=r"^CHAIRLIFT__HTTP__PORT is not YAML"):
        load_config(environment={"CHAIRLIFT__HTTP__PORT": "["})
