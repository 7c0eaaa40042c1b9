"""Can a result be believed: computes again what can be, and compares two results' inputs.

Owns the checks; a check that cannot be made here says so, and is no fault of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import cast

from chairlift.cluster.errors import StartupError
from chairlift.evaluation.study_files import Change, changes, flatten, to_tree
from chairlift.evaluation.study_provenance import hash_model, hash_traces, surroundings
from chairlift.evaluation.study_quality import quality_of
from chairlift.evaluation.study_store import FILES, Result, ResultFolder
from chairlift.evaluation.study_summary import find

__all__ = ["Check", "Found", "changed_inputs", "diff", "verify"]

_SHOWN = 5
"""Differences of a check that are told one by one."""


class Found(StrEnum):
    """How a check ended."""

    SAME = "same"
    DIFFERS = "DIFFERS"
    """The result is not what it says it is."""
    OTHER_HERE = "other here"
    """This machine has another one, which speaks against nothing."""
    CANNOT = "cannot be checked"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing, and how it was found."""

    name: str
    found: Found
    detail: str = ""


def verify(folder: Path, traces: Path | None) -> list[Check]:
    """Every check that there is.

    Args:
        folder: of the result.
        traces: where the recorded loads are, if they are here.

    Raises:
        ConfigError: it holds no result, or one that is too damaged to be read.
    """
    store = ResultFolder(folder)
    result = store.read()
    return [
        *_check_files(store, result),
        _check_plan(store, result),
        *_check_figures(result),
        *_check_times(result),
        *_check_traces(result, traces),
        _check_model(result),
        *_check_quality(result),
        *_check_surroundings(result),
    ]


def diff(before: Path, after: Path) -> list[Change]:
    """The inputs that are others in the second result: of plan and manifest, by name."""
    old, new = (ResultFolder(each).read() for each in (before, after))
    return changes(_asked(old), _asked(new)) + changed_inputs(old.manifest, new.manifest)


def changed_inputs(before: Mapping[str, object], after: Mapping[str, object]) -> list[Change]:
    """Of two manifests; neither how the command was written nor what was measured is an input."""
    old, new = ({**each, "command": None, "quality": None} for each in (before, after))
    return changes(old, new)


def _asked(result: Result) -> dict[str, object]:
    return {"plan": to_tree(result.plan), "rounds": result.entry.rounds}


def _check_files(store: ResultFolder, result: Result) -> Iterator[Check]:
    if result.judgement is None:
        yield Check("files", Found.CANNOT, "there is no judgement yet, which holds their hashes")
        return
    noted = cast("dict[str, str]", result.judgement.get("files", {}))
    found = store.hashes()
    for name in FILES:
        if noted.get(name) == found.get(name):
            yield Check(f"file {name}", Found.SAME)
        else:
            detail = f"SHA-256 {found.get(name)}, was {noted.get(name)} when it was judged"
            yield Check(f"file {name}", Found.DIFFERS, detail)


def _check_plan(store: ResultFolder, result: Result) -> Check:
    """That the plan in the folder is the one whose standing it tells."""
    standing = result.entry.standing
    if store.hashes()["plan.yaml"] != standing.sha256:
        return Check("plan", Found.DIFFERS, "it is not the plan that the study began with")
    return Check("plan", Found.SAME, f"SHA-256 {standing.sha256}; it is {standing.state}")


def _check_figures(result: Result) -> Iterator[Check]:
    """Measures and verdicts, computed again from the runs."""
    if result.judgement is None:
        yield Check("judgement", Found.CANNOT, "there is none yet")
        return
    again = find(result.plan, result.runs).as_tree()
    for name in ("measures", "judgement"):
        before = result.judgement.get(name)
        told = changes(before, again[name])
        detail = "; ".join(map(str, told[:_SHOWN])) + ("; …" if len(told) > _SHOWN else "")
        count = len(dict(flatten(before)))
        yield Check(
            name,
            Found.DIFFERS if told else Found.SAME,
            f"{len(told)} of {count} values: {detail}" if told else f"{count} values",
        )


def _check_times(result: Result) -> Iterator[Check]:
    if not all(run.simulated for run in result.runs):
        yield Check("times", Found.CANNOT, "what a clock showed can only be measured again, by run")


def _check_traces(result: Result, folder: Path | None) -> Iterator[Check]:
    noted = cast("dict[str, str | None]", result.manifest.get("traces", {}))
    here = hash_traces(result.plan, folder)
    for name, sha256 in noted.items():
        if here.get(name) is None:
            yield Check(f"trace {name}", Found.CANNOT, "it is not here; say where with --traces")
        elif here[name] == sha256:
            yield Check(f"trace {name}", Found.SAME)
        else:
            yield Check(f"trace {name}", Found.OTHER_HERE, f"SHA-256 {here[name]}, used {sha256}")


def _check_model(result: Result) -> Check:
    noted = result.manifest.get("model")
    if not noted:
        return Check("model", Found.SAME, "none computes in simulated time")
    try:
        told = changes(noted, hash_model(result.plan.target))
    except StartupError as error:
        return Check("model", Found.CANNOT, str(error))
    if told:
        return Check("model", Found.OTHER_HERE, "; ".join(map(str, told)))
    return Check("model", Found.SAME)


def _check_quality(result: Result) -> Iterator[Check]:
    """The perplexity, which the same weights and arithmetic give again, to the last digit."""
    noted = result.manifest.get("quality")
    if not noted:
        return
    try:
        told = changes(noted, quality_of(result.plan.target))
    except StartupError as error:
        yield Check("quality", Found.CANNOT, str(error))
        return
    yield Check("quality", Found.OTHER_HERE if told else Found.SAME, "; ".join(map(str, told)))


def _check_surroundings(result: Result) -> Iterator[Check]:
    """Code, versions and machine: whether a new run here would be the same study."""
    for name, part in surroundings(result.plan).items():
        told = changes(result.manifest.get(name), part)
        if told:
            yield Check(name, Found.OTHER_HERE, "; ".join(map(str, told[:_SHOWN])))
        else:
            yield Check(name, Found.SAME)
