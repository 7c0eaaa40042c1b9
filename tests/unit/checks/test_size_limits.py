import textwrap
from pathlib import Path

import pytest

from checks.classes import check_classes
from checks.environment import check_environment
from checks.size_limits import check, main
from checks.sizes import check_sizes
from checks.source import Source, read_sources
from checks.state import check_state

ROOT = Path(__file__).parents[3]


def source(text: str, file: str = "router/part.py") -> Source:
    return Source.parse(file, textwrap.dedent(text))


def found(check_one, text: str, file: str = "router/part.py") -> list[tuple[int, str]]:
    return [(item.line, item.message) for item in check_one(source(text, file))]


def function_of(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def class_of(methods: int) -> str:
    return "class C:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(methods))


@pytest.mark.parametrize(
    ("fits", "too_large", "words"),
    [
        ("x = 1\n" * 400, "x = 1\n" * 401, "module has 401 lines"),
        (function_of(60), function_of(61), "f() has 61 lines"),
        ("async " + function_of(60), "async " + function_of(61), "f() has 61 lines"),
        (class_of(15), class_of(16), "C has 16 methods"),
        (
            "def f(a, b, c, /, d, *, e, f): ...",
            "def f(a, b, c, *d, e, f, **g): ...",
            "7 parameters",
        ),
    ],
)
def test_a_size_is_allowed_up_to_its_limit(fits, too_large, words):
    assert found(check_sizes, fits) == []
    [(_, message)] = found(check_sizes, too_large)
    assert words in message


def test_self_and_cls_are_no_parameters_but_those_of_a_static_method_count():
    assert not found(check_sizes, "class C:\n    def m(self, a, b, c, d, e, f): ...")
    assert not found(
        check_sizes, "class C:\n    @classmethod\n    def m(cls, a, b, c, d, e, f): ..."
    )
    assert found(check_sizes, "class C:\n    @staticmethod\n    def m(z, a, b, c, d, e, f): ...")


@pytest.mark.parametrize("decorator", ["triton.jit", "triton.jit(noinline=True)"])
def test_a_kernel_may_have_any_number_of_parameters(decorator):
    many = "def f(a, b, c, d, e, f, g): ..."
    assert found(check_sizes, f"@other.jit\n{many}")
    assert not found(check_sizes, f"@{decorator}\n{many}")


def test_overload_signatures_are_no_methods():
    overloads = "".join(f"    @typing.overload\n    def m(self, x: {i}): ...\n" for i in range(9))
    assert not found(check_sizes, class_of(15) + overloads)


@pytest.mark.parametrize(
    "text",
    [
        "class A(str, enum.Enum): ...",
        "class A(Exception): ...\nclass B(A): ...\nclass C(B): ...",
        "from pydantic import BaseModel\nclass A(BaseModel): ...\nclass B(A): ...",
        "from typing import Protocol\nclass A(Protocol): ...\nclass B(A): ...",
        "import abc\nclass A(abc.ABC): ...\nclass B(A): ...",
        "from typing import Generic, T\nfrom torch import nn\nclass A(nn.Module, Generic[T]): ...",
        "import uvicorn\nclass A(uvicorn.Server): ...",
    ],
)
def test_inheritance_that_a_library_or_an_interface_asks_for_is_allowed(text):
    assert not list(check_classes([source(text)]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class LogMixin: ...", "no mixins"),
        ("class A: ...\nclass B(A): ...", "neither an interface"),
        ("from torch import nn\nclass A(nn.Module): ...\nclass B(A): ...", "neither an interface"),
        ("class A(Exception): ...\nclass B(A, KeyError): ...", "2 bases"),
    ],
)
def test_other_inheritance_is_refused(text, words):
    [violation] = check_classes([source(text)])
    assert words in violation.message


def test_a_base_is_found_in_the_module_that_defines_it():
    bases = source(
        "from typing import Protocol\nclass Plain: ...\nclass Shape(Protocol): ...\n",
        "workers/base.py",
    )
    user = source(
        """
        from chairlift.workers import base
        from chairlift.workers.base import Plain as Renamed, Shape
        class A(Renamed): ...
        class B(base.Plain): ...
        class C(Shape): ...
        """
    )
    assert [item.message.split()[0] for item in check_classes([bases, user])] == ["A", "B"]


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = ['a']",
        "LIMIT = 5",
        "pattern = re.compile('x')",
        "logger = logging.getLogger(__name__)",
        "Bytes = Annotated[int, Field(ge=1)]",
        "Number = int | float",
        "_UNITS = {'K': 1000}",
        "names: Final = ['a']",
        "def f():\n    cache = {}\n    cache['a'] = 1\n    return cache",
        "class C:\n    def __init__(self):\n        self.items = []",
    ],
)
def test_values_that_cannot_change_and_constants_are_allowed(text):
    assert found(check_state, text) == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("cache = {'a': 1}", 1, "UPPER_CASE"),
        ("app = FastAPI()", 1, "UPPER_CASE"),
        ("seen = [x for x in 'abc']", 1, "UPPER_CASE"),
        ("pair = (1, [])", 1, "UPPER_CASE"),
        ("try:\n    import a\nexcept ImportError:\n    a = object()", 4, "UPPER_CASE"),
        ("REGISTRY = {}", 1, "only be there to be changed"),
        ("REGISTRY: Final[dict] = dict()", 1, "only be there to be changed"),
        ("LOCK = threading.Lock()", 1, "only be there to be changed"),
        ("CURRENT = ContextVar('c')", 1, "only be there to be changed"),
        ("UNITS = {'K': 1}\ndef f():\n    UNITS['M'] = 2", 3, "UNITS is changed"),
        ("UNITS = {'K': 1}\ndef f():\n    del UNITS['K']", 3, "UNITS is changed"),
        ("NAMES = ['a']\ndef f():\n    NAMES.append('b')", 3, "changed by append()"),
        ("from chairlift.a import NAMES\nNAMES.clear()", 2, "changed by clear()"),
        ("count = 0\ndef f():\n    global count", 3, "global count"),
        ("total = 0\ntotal += 1", 2, "changed after it was bound"),
        ("@functools.lru_cache(maxsize=1)\ndef f(): ...", 2, "cache in a global"),
        ("@cache\ndef f(): ...", 2, "cache in a global"),
    ],
)
def test_module_level_state_is_found(text, line, words):
    [(at, message)] = found(check_state, text)
    assert (at, words in message) == (line, True), message


@pytest.mark.parametrize(
    ("text", "file", "violations"),
    [
        ("import os\nos.environ['A']", "router/a.py", 1),
        ("import os\nos.environ['A'] = '1'", "deployments/a.py", 1),
        ("import os\nos.getenv('A')", "workers/a.py", 1),
        ("from os import environ, path", "router/a.py", 1),
        ("import os\nos.environ['A']", "cluster/config.py", 0),
        ("import os\nos.path.exists('a')", "router/a.py", 0),
        ("self.environ = {}", "router/a.py", 0),
    ],
)
def test_the_environment_is_touched_in_one_place(text, file, violations):
    assert len(found(check_environment, text, file)) == violations


def test_tests_have_sizes_but_may_keep_state_and_read_the_environment():
    text = "import os\nseen = {}\nHOME = os.environ['HOME']\n" + function_of(61)
    [violation] = check([source(text, "tests/unit/test_a.py")])
    assert "61 lines" in violation.message


def test_generated_files_and_links_are_left_out(tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "real.py").write_text("x = 1\n")
    (tmp_path / "cluster" / "worker_pb2.py").write_text("x = []\n")
    (tmp_path / "chairlift").mkdir()
    (tmp_path / "chairlift" / "cluster").symlink_to("../cluster")
    sources, unreadable = read_sources(tmp_path)
    assert ([item.file for item in sources], unreadable) == (["cluster/real.py"], [])
    assert sources[0].module == "chairlift.cluster.real"


def test_every_violation_is_printed_with_its_place_and_the_exit_code_is_1(tmp_path, capsys):
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "a.py").write_text("\nseen = []\n")
    (tmp_path / "router" / "b.py").write_text("def f(:\n")
    assert main([str(tmp_path)]) == 1
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith("router/a.py:2: seen ")
    assert second.startswith("router/b.py:1: ")
    assert total == "size limits: 2 violations in 1 files"


def test_a_clean_tree_exits_with_0(tmp_path, capsys):
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "a.py").write_text("LIMIT = 3\n")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "size limits: 0 violations in 1 files\n"


def test_the_checks_see_the_whole_repository():
    """A folder that is renamed or left out of the list would pass every rule unread."""
    sources, _ = read_sources(ROOT)
    folders = {item.file.split("/", 1)[0] for item in sources}
    linked = {path.name for path in (ROOT / "chairlift").iterdir() if path.is_symlink()}
    assert linked | {"chairlift", "tests"} == folders
