"""What is installed without extras works without what they bring."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

HOOK = """
import importlib, json, sys

class Barred:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BARRED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BARRED = set(json.loads(sys.argv.pop(1)))
sys.meta_path.insert(0, Barred())
"""

BARRED = [
    *("ray", "torch", "numpy", "gguf", "grpc", "google", "jinja2", "llguidance", "opentelemetry"),
    *("psutil", "safetensors", "tokenizers", "triton", "uvicorn"),
]
"""The packages of the extras, by the names that they are imported by."""

COMMANDS = "chat top guard bench monitoring key ledger replay explain".split()


def python(code, *arguments, barred=BARRED):
    return subprocess.run(
        [sys.executable, "-c", HOOK + code, json.dumps(barred), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_the_client_imports_its_http_library_and_nothing_else_that_is_large():
    code = """
import chairlift.client
chairlift.client.Client("http://127.0.0.1:1").close()
print(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
print(sorted(name for name in sys.modules if name.startswith("chairlift.")))
"""
    others = ["aiohttp", "orjson", "pydantic", "prometheus_client", "rich", "uvloop", "yaml"]
    done = python(code, barred=[*BARRED, *others])
    assert done.returncode == 0, done.stderr
    packages, ours = done.stdout.splitlines()
    assert {"httpx2", "chairlift"} <= set(json.loads(packages.replace("'", '"')))
    assert all(name.startswith("chairlift.client") for name in json.loads(ours.replace("'", '"')))


def test_commands_that_talk_to_a_service_or_read_a_ledger_need_no_extra():
    code = f"""
from chairlift.deployments.cli import main
for command in [[], *([name] for name in {COMMANDS})]:
    try:
        main([*command, "--help"])
    except SystemExit as stopped:
        assert not stopped.code, command
    else:
        raise SystemExit(f"{{command}} does not start")
assert main(["key"]) == 0
"""
    done = python(code)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_help_imports_no_package_at_all():
    code = """
from chairlift.deployments.cli import main
try:
    main(["--help"])
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("chairlift.")), file=sys.stderr)
"""
    done = python(code, barred=[*BARRED, "aiohttp", "httpx2", "pydantic", "rich", "yaml"])
    assert done.returncode == 0
    loaded = json.loads(done.stderr.replace("'", '"'))
    assert loaded == [f"chairlift.{each}" for each in ("cluster", "cluster.errors")] + [
        f"chairlift.{each}" for each in ("deployments", "deployments.cli")
    ]


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_what_needs_an_extra_says_so_in_one_line(command):
    code = "from chairlift.deployments.cli import main\nsys.exit(main(sys.argv[1:]))"
    done = python(code, command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"chairlift: {command} needs ")
    assert done.stderr.endswith("run: pip install 'chairlift[serve]'\n")
    assert done.stderr.count("\n") == 1


def test_a_fault_of_ours_is_not_taken_for_a_missing_package(monkeypatch):
    from chairlift.deployments import cli

    monkeypatch.setitem(cli.COMMANDS, "key", ("deployments.nothing", "no such module"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["key"])


def test_the_extras_hold_what_is_large():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    light = " ".join(project["dependencies"])
    assert "httpx2" in light
    assert not any(name in light for name in ("torch", "ray", "numpy", "gguf", "grpcio"))
    extras = project["optional-dependencies"]
    assert all("chairlift[serve]" in extras[name] for name in ("gpu", "flash", "dev"))
    assert any(each.startswith("torch") for each in extras["serve"])
