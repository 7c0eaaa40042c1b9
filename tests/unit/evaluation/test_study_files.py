from pathlib import Path

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_files import changes, flatten, read_tree, write_tree, write_whole


def test_every_leaf_has_a_name_and_what_is_empty_too() -> None:
    tree = {"a": {"b": [1, None]}, "c": {}, "d": []}
    assert dict(flatten(tree)) == {"a.b.0": 1, "a.b.1": None, "c": "{}", "d": "[]"}


def test_changes_are_named_in_both_directions() -> None:
    told = changes({"a": 1, "b": 2}, {"a": 1.5, "c": "x"})
    assert [str(each) for each in told] == ["a: 1 → 1.5", "b: 2 → nothing", "c: nothing → x"]


def test_a_file_is_whole_or_as_before(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    write_tree(file, {"a": 1})
    with pytest.raises(TypeError):
        write_tree(file, {"a": object()})
    assert read_tree(file) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["tree.json"]


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        write_whole(tmp_path / "none" / "file", b"")


@pytest.mark.parametrize("content", [b"", b"[1]", b"{"])
def test_what_is_no_tree_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tree.json").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        read_tree(tmp_path / "tree.json")
