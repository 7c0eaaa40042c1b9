from pathlib import Path

from checks.docs import check_links, check_readmes


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_link_to_nothing_is_found_and_other_addresses_are_left_alone(tmp_path):
    write(tmp_path / "docs" / "there.md")
    write(
        tmp_path / "README.md",
        "[a](docs/there.md)\n[b](docs/gone.md#part)\n[c](https://example.org/x) [d](#part)\n",
    )
    [violation] = check_links(tmp_path)
    assert (violation.line, violation.message) == (2, "docs/gone.md does not exist")


def test_links_are_taken_from_where_the_document_stands(tmp_path):
    write(tmp_path / "docs" / "a.md", "[b](b.md) [up](../README.md)")
    write(tmp_path / "docs" / "b.md")
    write(tmp_path / "README.md")
    assert list(check_links(tmp_path)) == []


def test_a_readme_names_every_module_and_no_other(tmp_path):
    write(tmp_path / "router" / "__init__.py")
    write(tmp_path / "router" / "kept.py")
    write(tmp_path / "router" / "added.py")
    write(tmp_path / "router" / "README.md", "- `kept.py`: a\n- `removed.py`: b\n")
    messages = [item.message for item in check_readmes(tmp_path) if "router" in item.file]
    assert messages == [
        "does not say what added.py is for",
        "names removed.py, which is not there",
    ]


def test_a_folder_without_a_readme_is_found(tmp_path):
    write(tmp_path / "router" / "a.py")
    assert "router/README.md:1: is missing" in map(str, check_readmes(tmp_path))
