from checks.terraform_docs import check_tables, tables, write_tables
from checks.terraform_read import Folder, read_blocks

CODE = """
variable "pools" {
  type = map(object({
    max = number
  }))
  description = "Machines."
  default     = {}
}

variable "name" {
  type        = string
  description = "Prefix."
}

output "url" {
  description = "Where it is."
  value       = var.name
}
"""


def module(code: str) -> Folder:
    return Folder("terraform/modules/a", tuple(read_blocks("terraform/modules/a/main.tf", code)))


def test_tables_say_type_default_and_what_is_required():
    text = tables(module(CODE))
    assert "| `pools` | Machines. | `map(object({max = number}))` | `{}` |" in text
    assert "| `name` | Prefix. | `string` | **required** |" in text
    assert "| `url` | Where it is. |" in text


def test_written_tables_agree_and_the_words_around_them_stay(tmp_path):
    readme = tmp_path / "terraform/modules/a/README.md"
    readme.parent.mkdir(parents=True)
    readme.write_text("# a\n\nBefore.\n", encoding="utf-8")
    [missing] = check_tables(module(CODE), tmp_path)
    assert "--write writes them" in missing.message

    write_tables(module(CODE), tmp_path)
    assert list(check_tables(module(CODE), tmp_path)) == []
    readme.write_text(readme.read_text(encoding="utf-8") + "\nAfter.\n", encoding="utf-8")
    changed = module(CODE.replace("Machines.", "Many machines."))
    [differs] = check_tables(changed, tmp_path)
    assert differs.line == 5

    write_tables(changed, tmp_path)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("# a\n\nBefore.\n")
    assert text.endswith("\nAfter.\n")
    assert "Many machines." in text
    assert list(check_tables(changed, tmp_path)) == []


def test_a_module_without_a_readme_is_found_and_an_example_needs_none(tmp_path):
    [violation] = check_tables(module(CODE), tmp_path)
    assert str(violation) == "terraform/modules/a/README.md:1: is missing"
    assert list(check_tables(Folder("terraform/examples/a", ()), tmp_path)) == []
