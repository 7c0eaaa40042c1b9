"""What was fixed before anything was measured: registrations of plans, and sealed sets.

Owns two files beside a plan: ``NAME.registered.json``, its text with a time stamp, and
``NAME.opened.json``, which says when its sealed sets were first opened. Neither is ever written a
second time. They show an honest reader what happened; they do not keep a liar from deleting them.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_files import changes, read_tree, sha256_of, to_tree
from chairlift.evaluation.study_plan import Plan, Trace, parse_plan
from chairlift.evaluation.study_provenance import code_version

__all__ = ["Opening", "Registration", "Standing", "State", "open_sealed", "part_of", "register",
           "standing"]  # fmt: skip


class State(StrEnum):
    """How a plan stands to its registration."""

    REGISTERED = "registered"
    CHANGED = "changed since it was registered"
    NOT_REGISTERED = "not registered"


@dataclass(frozen=True, slots=True)
class Registration:
    """A plan as it was.

    Attributes:
        plan: the file's name.
        sha256: of its bytes.
        text: all of it.
        at: UTC.
        commit, dirty: of the code; None where that is not known.
    """

    plan: str
    sha256: str
    text: str
    at: str
    commit: str | None
    dirty: bool | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A plan beside its registration.

    Attributes:
        sha256: of the plan as it is now.
        changes: fields that are another, one a line.
    """

    state: State
    sha256: str
    registration: Registration | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """The first time that a plan's sealed sets were opened; ``first``: it was this time."""

    at: str
    commit: str | None
    files: dict[str, str]
    first: bool


def register(plan_file: Path) -> Registration:
    """Write down a plan as it is.

    Raises:
        ConfigError: the plan is not sound, or there is a registration already.
    """
    text = _text(plan_file)
    parse_plan(text, str(plan_file))
    commit, dirty = code_version()
    made = Registration(
        plan=plan_file.name,
        sha256=_sha256(text),
        text=text,
        at=_now(),
        commit=commit,
        dirty=dirty,
    )
    file = _beside(plan_file, "registered")
    if not _write_once(file, made):
        raise ConfigError(
            f"{plan_file} is registered already, see {file}; a changed plan is another plan: give "
            "it a file of its own"
        )
    return made


def standing(plan_file: Path) -> Standing:
    """Raises ConfigError where plan or registration cannot be read."""
    text = _text(plan_file)
    sha256 = _sha256(text)
    file = _beside(plan_file, "registered")
    if not file.exists():
        return Standing(State.NOT_REGISTERED, sha256)
    registration = _read(file)
    if registration.sha256 == sha256:
        return Standing(State.REGISTERED, sha256, registration)
    before = parse_plan(registration.text, str(file))
    after = parse_plan(text, str(plan_file))
    told = tuple(str(change) for change in changes(to_tree(before), to_tree(after)))
    return Standing(
        State.CHANGED, sha256, registration, told or ("its wording, and no field of it",)
    )


def part_of(plan: Plan, *, sealed: bool) -> Plan:
    """The plan with those workloads only that read sealed sets, or with the others.

    Raises:
        ConfigError: no threshold is left.
    """
    workloads = {
        name: workload
        for name, workload in plan.workloads.items()
        if (isinstance(workload.source, Trace) and workload.source.sealed) == sealed
    }
    thresholds = [each for each in plan.thresholds if each.workload in workloads]
    if not thresholds:
        kind = "a sealed set" if sealed else "anything but sealed sets, which `confirm` opens"
        raise ConfigError(f"plan {plan.name}: no threshold is about {kind}")
    return plan.model_copy(update={"workloads": workloads, "thresholds": thresholds})


def open_sealed(plan_file: Path, plan: Plan, files: list[Path]) -> Opening:
    """Note that a plan's sealed sets are opened; a plan has that once.

    Args:
        plan_file: must be registered, and as it was then: otherwise the sets would be used up, and
            nothing confirmed.
        plan: what ``part_of`` gave for the sealed sets.
        files: all of them.

    Raises:
        ConfigError: the plan is not as registered, or the files are not those that it names.
    """
    state = standing(plan_file).state
    if state is not State.REGISTERED:
        raise ConfigError(
            f"{plan_file} is {state}: opening its sealed sets would confirm nothing and use them up"
        )
    _check_sealed(plan, files)
    file = _beside(plan_file, "opened")
    commit, _ = code_version()
    hashes = {each.name: sha256_of(each) for each in files}
    opening = Opening(_now(), commit, hashes, first=True)
    if _write_once(file, opening):
        return opening
    before = read_tree(file)
    at, known = before.get("at"), before.get("commit")
    return Opening(str(at), None if known is None else str(known), hashes, first=False)


def _check_sealed(plan: Plan, files: list[Path]) -> None:
    given = {each.name: each for each in files}
    sources = [each.source for each in plan.workloads.values()]
    wanted = {each.file: each.sha256 for each in sources if isinstance(each, Trace)}
    if given.keys() != wanted.keys():
        raise ConfigError(
            f"--sealed: the plan's sealed sets are {', '.join(sorted(wanted))}; given are "
            f"{', '.join(sorted(given))}"
        )
    if len({each.resolve().parent for each in files}) > 1:
        raise ConfigError("--sealed: the files must lie in one folder")
    for name, sha256 in wanted.items():
        found = sha256_of(given[name])
        if found != sha256:
            raise ConfigError(f"--sealed: {name} has the SHA-256 {found}, the plan says {sha256}")


def _read(file: Path) -> Registration:
    tree = read_tree(file)
    try:
        found = Registration(**tree)  # type: ignore[arg-type]  # what it holds is checked by its hash
    except TypeError:
        raise ConfigError(f"{file} is damaged: it is no registration") from None
    if not isinstance(found.text, str) or _sha256(found.text) != found.sha256:
        raise ConfigError(f"{file} is damaged: its text does not have the hash that it names")
    return found


def _write_once(file: Path, content: Registration | Opening) -> bool:
    """False where it is there."""
    try:
        with file.open("xb") as target:
            target.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None
    return True


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the plan {file}: {error}") from None


def _beside(plan_file: Path, what: str) -> Path:
    return plan_file.with_name(f"{plan_file.stem}.{what}.json")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
