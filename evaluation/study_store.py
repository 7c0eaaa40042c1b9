"""A study's result: a folder in which whole runs outlive whatever happens to the study.

Owns the files and their form; computes nothing.

    plan.yaml            as it was when the study began, byte by byte
    registration.json    how the plan stood then, and which part of it is run
    manifest.json        everything that went in, see ``study_provenance``
    runs.jsonl.gz        a run a line, each compressed by itself: one that was cut off spoils none
    judgement.json       what followed, and the hashes of the files above
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_files import read_tree, sha256_of, write_tree, write_whole
from chairlift.evaluation.study_plan import Plan, load_plan
from chairlift.evaluation.study_registry import Opening, Standing, State, part_of
from chairlift.evaluation.study_run import Run

__all__ = ["FILES", "Entry", "Result", "ResultFolder"]

FILES = ("plan.yaml", "registration.json", "manifest.json", "runs.jsonl.gz")
_PLAN, _ENTRY, _MANIFEST, _RUNS = FILES
_JUDGEMENT = "judgement.json"

_RUN = TypeAdapter(Run)


@dataclass(frozen=True, slots=True)
class Entry:
    """How a study began.

    Attributes:
        standing: of its plan.
        opening: of the sealed sets; None where it reads none.
        rounds: how many were asked for, at the latest.
    """

    standing: Standing
    opening: Opening | None
    rounds: int


_ENTRY_TYPE = TypeAdapter(Entry)


@dataclass(frozen=True, slots=True)
class Result:
    """All of a folder.

    Attributes:
        plan: the part of the plan that was run.
        judgement: as it was written; None before that.
    """

    folder: Path
    plan: Plan
    entry: Entry
    manifest: dict[str, object]
    runs: tuple[Run, ...]
    judgement: dict[str, object] | None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it is exploratory; none where it is what the plan announced."""
        found = []
        entry = self.entry
        if entry.standing.state is not State.REGISTERED:
            found.append(f"the plan is {entry.standing.state}")
        if entry.opening is not None and not entry.opening.first:
            found.append(f"the sealed sets were opened before, on {entry.opening.at}")
        rounds = max([entry.rounds, *(run.round + 1 for run in self.runs)])
        if rounds != self.plan.rounds:
            found.append(f"{rounds} rounds were asked for, the plan says {self.plan.rounds}")
        return tuple(found)


class ResultFolder:
    """The folder while a study goes on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    @property
    def begun(self) -> bool:
        return (self.path / _ENTRY).exists()

    def begin(self, plan: bytes, entry: Entry, manifest: Mapping[str, object]) -> None:
        """Raises ConfigError where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / _RUNS).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None
        write_whole(self.path / _PLAN, plan)
        write_tree(self.path / _MANIFEST, manifest)
        # The last: from now on there is a study to go on with.
        self._write(entry)

    def go_on(self, rounds: int | None) -> None:
        """Drop a run that was cut off while it was written, and a judgement of too few.

        ``rounds``: as many from now on; None for as many as before.
        """
        file = self.path / _RUNS
        if rounds is not None:
            self._write(replace(self._entry(), rounds=rounds))
        (self.path / _JUDGEMENT).unlink(missing_ok=True)
        if file.exists():
            _, whole = _members(file)
            os.truncate(file, whole)

    def add(self, run: Run) -> None:
        """Keep a run; it is on the disk when this returns."""
        packer = zlib.compressobj(wbits=31)
        content = packer.compress(_RUN.dump_json(run) + b"\n") + packer.flush()
        with (self.path / _RUNS).open("ab") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())

    def judge(self, judgement: Mapping[str, object]) -> None:
        """Write what followed, under the hashes of what it follows from."""
        write_tree(self.path / _JUDGEMENT, {"files": self.hashes(), **judgement})

    def hashes(self) -> dict[str, str]:
        present = (self.path / name for name in FILES)
        return {file.name: sha256_of(file) for file in present if file.exists()}

    def read(self) -> Result:
        """Raises ConfigError for what is no result, or a damaged one."""
        if not self.begun:
            raise ConfigError(f"{self.path} holds no result of a study")
        entry = self._entry()
        judgement = self.path / _JUDGEMENT
        return Result(
            folder=self.path,
            plan=part_of(load_plan(self.path / _PLAN), sealed=entry.opening is not None),
            entry=entry,
            manifest=read_tree(self.path / _MANIFEST),
            runs=self._runs(),
            judgement=read_tree(judgement) if judgement.exists() else None,
        )

    def _write(self, entry: Entry) -> None:
        write_whole(self.path / _ENTRY, _ENTRY_TYPE.dump_json(entry, indent=2) + b"\n")

    def _entry(self) -> Entry:
        file = self.path / _ENTRY
        try:
            return _ENTRY_TYPE.validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{file} is damaged: {error}") from None

    def _runs(self) -> tuple[Run, ...]:
        file = self.path / _RUNS
        if not file.exists():
            return ()
        lines, _ = _members(file)
        try:
            return tuple(_RUN.validate_json(line) for line in lines)
        except ValidationError as error:
            raise ConfigError(f"{file} is damaged: {error.errors()[0]['msg']}") from None


def _members(file: Path) -> tuple[list[bytes], int]:
    """What is whole of it, and how many bytes that takes.

    Raises ConfigError where something is damaged, which a cut at the end is not.
    """
    rest = content = file.read_bytes()
    found = []
    while rest:
        reader = zlib.decompressobj(wbits=31)
        try:
            text = reader.decompress(rest)
        except zlib.error as error:
            place = len(content) - len(rest)
            raise ConfigError(f"{file} is damaged at byte {place}: {error}") from None
        if not reader.eof:
            break
        found.append(text)
        rest = reader.unused_data
    return found, len(content) - len(rest)
