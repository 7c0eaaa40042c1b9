"""What the machines of ray-vm get: filled in as Terraform does, for these templates use no more."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

TEMPLATES = Path(__file__).parents[3] / "terraform/modules/ray-vm/templates"


def fill(template: str, **values: str) -> str:
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    text = re.sub(r"(?<!\$)\$\{(\w+)\}", lambda found: values[found[1]], text)
    return text.replace("$${", "${")


def indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def machine(role: str, package: str = "chairlift[serve]") -> dict[str, str]:
    """Path → content of each file."""
    setup = fill(
        "setup.sh.tftpl",
        package=package,
        ray="ray[serve]==1.0.0",
        region="eu-central-1",
        secret="chairlift-tokens-1",
        bucket="bucket",
        weights="/var/lib/chairlift/weights",
        model="models/a.gguf",
        role=role,
    )
    text = fill(
        "cloud-init.yaml.tftpl",
        constraints=indented("ray==1.0.0\nnumpy==2.0.0\n"),
        serve=indented("applications:\n- name: chairlift\n"),
        setup=indented(setup),
        start="--head" if role == "head" else "--address=10.0.0.1:6379",
    )
    assert text.startswith("#cloud-config\n")
    return {each["path"]: each["content"] for each in yaml.safe_load(text)["write_files"]}


@pytest.mark.parametrize("role", ["head", "worker"])
def test_what_is_put_into_a_machine_stays_as_it_was(role):
    files = machine(role)
    assert files["/etc/chairlift/constraints.txt"] == "ray==1.0.0\nnumpy==2.0.0\n"
    assert yaml.safe_load(files["/etc/chairlift/serve.yaml"]) == {
        "applications": [{"name": "chairlift"}]
    }
    assert files["/usr/local/sbin/chairlift-setup"].startswith("#!/bin/bash\n")


def test_the_setup_is_a_program_that_bash_reads():
    done = subprocess.run(
        ["bash", "-n"],
        input=machine("head")["/usr/local/sbin/chairlift-setup"],
        text=True,
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("package", "installed"),
    [
        ("chairlift[serve]==0.1.0", "chairlift[serve]==0.1.0"),
        ("dist/chairlift-0.1.0.whl[gpu]", "/var/lib/chairlift/chairlift-0.1.0.whl[gpu]"),
    ],
)
def test_a_wheel_in_the_bucket_is_fetched_and_installed_with_its_extra(
    tmp_path, package, installed
):
    setup = machine("worker", package)["/usr/local/sbin/chairlift-setup"]
    head, _, rest = setup.partition("package=")
    assert "set -euo pipefail" in head
    part = "package=" + rest.partition("python3 -m venv")[0]
    script = f'aws=(echo)\n{part}\necho "$package" >&2'
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == installed
    fetched = "s3://bucket/dist/chairlift-0.1.0.whl" in done.stdout
    assert fetched is (".whl" in package)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    units = []
    for path, content in machine("head").items():
        if path.endswith(".service"):
            unit = tmp_path / Path(path).name
            content = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", content, flags=re.M)
            unit.write_text(content.replace("User=chairlift", "User=root"), encoding="utf-8")
            units.append(str(unit))
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line] == []
