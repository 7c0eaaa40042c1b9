"""The runbooks of the page on operations, as something that can be run.

Owns their form: a heading of the third level, four parts with these names in bold, and commands in
fenced blocks of ``sh``. A comment ``# shows PATTERN`` after a command says what its output comes to
in the end: a command that shows something is repeated until it does. Reads no files and runs
nothing.

    ### ChairliftHubMissing
    **Symptom.** …
    **First look.** …   ```sh … ```
    **Action.** …       ```sh … ```
    **Owner.** telemetry
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PARTS", "Command", "Runbook", "read_runbooks", "script"]

PARTS = ("Symptom", "First look", "Action", "Owner")
"""Of each runbook."""

_SECTION = "## Runbooks"
_HEADING = re.compile(r"### (.+)")
_PART = re.compile(rf"\*\*({'|'.join(PARTS)})\.\*\*")
_FENCE = "```"
_NAME = re.compile(r"\$([A-Z]+)")
_SHOWS = re.compile(r"\s+# shows (.+)$")
_FUNCTIONS = """\
shows() {
  end=$(($(date +%s) + DEADLINE_S))
  until output=$(eval "$2" 2>&1); printf '%s\\n' "$output" | grep -Eq -- "$1"; do
    if [ "$(date +%s)" -ge "$end" ]; then
      printf 'never showed %s: %s\\n%s\\n' "$1" "$2" "$output" >&2; exit 1
    fi
    sleep 0.1
  done
  printf '%s\\n' "$output"
}
"""
"""A command that never shows what it should ends the script with its last output."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a block, put together where it was continued; ``shows`` is a pattern of grep."""

    text: str
    shows: str | None


@dataclass(frozen=True, slots=True)
class Runbook:
    """One section; ``parts`` are those that it has, as text with all their blocks."""

    title: str
    line: int
    parts: dict[str, str]

    @property
    def anchor(self) -> str:
        """Of its heading, as Markdown's readers make it."""
        kept = "".join(each for each in self.title.lower() if each.isalnum() or each in " -_")
        return kept.replace(" ", "-")

    @property
    def owner(self) -> str:
        """The first word of that part; "" without one."""
        words = re.findall(r"\w+", self.parts.get("Owner", ""))
        return words[0] if words else ""

    def commands(self, part: str) -> tuple[Command, ...]:
        """Of all blocks of a part, in order."""
        return tuple(_commands(self.parts.get(part, "").splitlines()))


def read_runbooks(page: str) -> dict[str, Runbook]:
    """All of a page, by title; none where it has no such section."""
    found: dict[str, Runbook] = {}
    for title, line, lines in _sections(page.splitlines()):
        found[title] = Runbook(title, line, dict(_parts(lines)))
    return found


def script(commands: Iterable[Command], values: Mapping[str, str]) -> str:
    """What ``sh -eu`` runs for them: one shell for all, so that one can use what another set.

    Args:
        commands: of a part.
        values: of variables that patterns name (``$REPLICAS``); commands take theirs, and
            ``DEADLINE_S``, whole seconds until something is shown, from the environment.
    """
    lines = [
        each.text
        if each.shows is None
        else f"shows {shlex.quote(_filled(each.shows, values))} {shlex.quote(each.text)}"
        for each in commands
    ]
    return "\n".join([_FUNCTIONS, *lines, ""])


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """With values in place of their names; any other ``$`` stays."""

    def value(name: re.Match[str]) -> str:
        return re.escape(values[name[1]]) if name[1] in values else name[0]

    return _NAME.sub(value, pattern)


def _sections(lines: Sequence[str]) -> Iterator[tuple[str, int, list[str]]]:
    """Title, number of the heading's line, and lines of each runbook."""
    inside, fenced = False, False
    title, start, body = "", 0, list[str]()
    for number, line in enumerate([*lines, "## "], start=1):
        fenced ^= line.startswith(_FENCE)
        heading = None if fenced else _HEADING.fullmatch(line)
        ends = not fenced and line.startswith("## ")
        if (heading or ends) and inside and title:
            yield title, start, body
        if heading or ends:
            title, start, body = heading[1].strip() if heading else "", number, []
            inside = line.strip() == _SECTION if ends else inside
        else:
            body.append(line)


def _parts(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    name, text = "", list[str]()
    for line in lines:
        begun = _PART.match(line)
        if begun and name:
            yield name, "\n".join(text).strip()
        if begun:
            name, text = begun[1], [line[begun.end() :]]
        else:
            text.append(line)
    if name:
        yield name, "\n".join(text).strip()


def _commands(lines: Iterable[str]) -> Iterator[Command]:
    inside, begun = False, ""
    for line in lines:
        if line.startswith(_FENCE):
            inside = line == f"{_FENCE}sh"
        elif inside and line.strip():
            begun += line
            if line.endswith("\\"):
                begun += "\n"
                continue
            shows = _SHOWS.search(begun)
            text = begun[: shows.start()] if shows else begun
            if not text.lstrip().startswith("#"):
                yield Command(text, shows[1].strip() if shows else None)
            begun = ""
