"""Calls in the text of an output, as it comes.

Owns the reading of what ``deployments.tool_formats`` describes: which text is a call's, its name,
and its arguments piece by piece. What looks like a call and is none (no such function, no JSON)
stays text. Whether the text comes whole or in pieces makes no difference to what they add up to.

    text ──mark──► held back until it is a call ──► name, arguments … ──mark──► text
                   └──────── it is none ──────────────────────────────────────►
"""

from __future__ import annotations

import enum
import json
import re
import secrets
import string
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from chairlift.deployments.json_pieces import MemberScanner
from chairlift.deployments.tool_formats import MISTRAL, MISTRAL_ARGS, ToolFormat

__all__ = ["CallDelta", "ReadText", "ToolReader", "whole_calls"]

_BLANK = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
"""Models mix them up."""
_MISTRALS = (MISTRAL, MISTRAL_ARGS)
"""Read alike, whichever the model was taught."""
_BEHIND_NAME = re.compile(r"((\[CALL_ID])?[A-Za-z0-9]{9})?(\[ARGS])?[ \t\r\n]*(?=\{)")
_FULLY_BEHIND = "[CALL_ID]000000000[ARGS]{"
_ENDINGS = [_FULLY_BEHIND[start:] for start in range(len(_FULLY_BEHIND))]
"""With one of them, what may stand between a name and its arguments is complete."""


class CallDelta(NamedTuple):
    """News of call number ``call``; ``id`` and ``name`` come with its first, and only there."""

    call: int
    arguments: str
    id: str | None = None
    name: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As OpenAI streams it."""
        function: dict[str, str] = {"arguments": self.arguments}
        if self.id is None or self.name is None:
            return {"index": self.call, "function": function}
        function = {"name": self.name, **function}
        return {"index": self.call, "id": self.id, "type": "function", "function": function}


class ReadText(NamedTuple):
    """What a piece of text comes to."""

    text: str
    calls: tuple[CallDelta, ...] = ()


def whole_calls(deltas: Iterable[CallDelta]) -> list[dict[str, Any]]:
    """All of a choice's calls as OpenAI writes them, from their news."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.id is not None:
            function = {"name": delta.name, "arguments": delta.arguments}
            calls.append({"id": delta.id, "type": "function", "function": function})
        else:
            calls[delta.call]["function"]["arguments"] += delta.arguments
    return calls


class _In(enum.Enum):
    START = "nothing but marks has come"
    TEXT = "text, in which a call may begin"
    CALL = "a call's object"
    AFTER = "behind a call"
    REST = "nothing but text comes any more"


class ToolReader:
    """Reads one choice.

    Attributes:
        num_calls: that were found so far.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self.num_calls = 0
        self._form = form
        self._names = names
        self._in = _In.TEXT if form.anywhere else _In.START
        self._unread = ""
        self._held = ""  # what of the present call would be text if it were none
        self._name: str | None = None  # of the present call, where it stands before its arguments
        self._object = ""  # of the present call
        self._scanner = MemberScanner()
        self._sent: int | None = None  # characters of its arguments; None: it is no call yet
        self._text: list[str] = []
        self._calls: list[CallDelta] = []

    def feed(self, text: str, *, last: bool = False) -> ReadText:
        """Read on; ``last`` when no more is to come."""
        self._unread += text
        while self._unread and self._step():
            pass
        if last:
            self._end()
        read = ReadText("".join(self._text), tuple(self._calls))
        self._text, self._calls = [], []
        return read

    def _step(self) -> bool:
        """Read a part of what is unread; False where more has to come first."""
        match self._in:
            case _In.START:
                return self._start()
            case _In.TEXT:
                return self._find()
            case _In.CALL:
                return self._scan()
            case _In.AFTER:
                return self._after()
            case _In.REST:
                return self._say(len(self._unread))

    def _say(self, count: int) -> bool:
        self._text.append(self._unread[:count])
        self._unread = self._unread[count:]
        return count > 0

    def _open(self, count: int, name: str | None = None) -> bool:
        """A call's object begins behind so many characters."""
        self._held, self._unread = self._held + self._unread[:count], self._unread[count:]
        self._name, self._object = name, ""
        self._scanner, self._sent = MemberScanner(), None
        self._in = _In.CALL
        return True

    def _start(self) -> bool:
        """The output is calls from here on, or text."""
        rest = self._unread.lstrip(_BLANK)
        mark = self._form.mark
        if rest.startswith(mark):
            rest = rest[len(mark) :].lstrip(_BLANK)
        elif mark.startswith(rest):
            return False
        if self._form in _MISTRALS:
            if (opened := self._open_named(rest)) is not None:
                return opened
            rest = rest.removeprefix("[").lstrip(_BLANK)
        if not rest:
            return False
        if rest.startswith("{"):
            return self._open(len(self._unread) - len(rest))
        self._in = _In.REST
        return True

    def _open_named(self, rest: str) -> bool | None:
        """Open the call whose name begins what is unread, but for blanks and marks.

        Returns:
            None where there is none, False where more has to come first.
        """
        for name in sorted(self._names, key=len, reverse=True):
            if rest.startswith(name):
                behind = rest[len(name) :]
                if found := _BEHIND_NAME.match(behind):
                    count = len(self._unread) - len(behind) + found.end()
                    return self._open(count, name)
                if any(_BEHIND_NAME.match(behind + ending) for ending in _ENDINGS):
                    return False
            elif rest and name.startswith(rest):
                return False
        return None

    def _find(self) -> bool:
        """Look for a call in text; blanks before it are no text."""
        mark, unread = self._form.mark, self._unread
        place = unread.find(mark)
        if place >= 0:
            text = unread[:place].rstrip(_BLANK)
            self._text.append(text)
            self._held, self._unread = unread[len(text) : place], unread[place:]
            return self._open(len(mark))
        told = len(unread) - _overlap(unread, mark)
        self._say(len(unread[:told].rstrip(_BLANK)))
        return False

    def _scan(self) -> bool:
        scanner = self._scanner
        count = scanner.feed(self._unread)
        botched = scanner.failed and self._name is not None and bool(scanner.values)
        if botched:  # it is a call, which ends before what cannot be a part of it
            count -= 1
        taken, self._unread = self._unread[:count], self._unread[count:]
        self._held += taken
        self._object += taken
        if scanner.failed and self._sent is None and not botched:
            return self._no_call()
        if botched or not scanner.failed:
            self._tell(scanner)
        if scanner.ended and self._sent is None:
            return self._no_call()
        if scanner.ended or scanner.failed:
            self._held = ""
            self._in = _In.AFTER
        return True

    def _tell(self, scanner: MemberScanner) -> None:
        """Pass on what is known of the call."""
        called = self._named_call(scanner) if self._name else _written_call(scanner, self._names)
        if called is None:
            return
        name, written = called
        if self._sent is None:
            id_ = _new_id(self._form)
            self._calls.append(CallDelta(self.num_calls, written, id_, name))
            self.num_calls += 1
            self._held = ""
        elif len(written) > self._sent:
            self._calls.append(CallDelta(self.num_calls - 1, written[self._sent :]))
        self._sent = len(written)

    def _named_call(self, scanner: MemberScanner) -> tuple[str, str] | None:
        """Name and arguments, as far as they have come; None while it may be none."""
        if self._name is None or not (scanner.values or scanner.ended):
            return None
        return self._name, self._object

    def _no_call(self) -> bool:
        """What was held back is text after all."""
        self._text.append(self._held)
        self._held = ""
        self._in = _In.TEXT if self._form.anywhere else _In.REST
        return True

    def _after(self) -> bool:
        """Up to the next call, or the mark that ends this one."""
        if self._form.anywhere:
            return self._close()
        rest = self._unread.lstrip(_BLANK + ",;")
        if self._form in _MISTRALS:
            marked = rest.removeprefix(self._form.mark).lstrip(_BLANK)
            if (opened := self._open_named(marked)) is not None:
                return opened
            if self._form.mark.startswith(rest):
                return False
        if not rest:
            return False
        self._unread = rest
        if rest.startswith("{"):
            return self._open(0)
        closes = MISTRAL.closes if self._form in _MISTRALS else self._form.closes
        self._unread = rest.removeprefix(closes).lstrip(_BLANK)
        self._in = _In.REST
        return True

    def _close(self) -> bool:
        """Up to the mark that ends a call among text."""
        rest, mark = self._unread.lstrip(_BLANK), self._form.closes.strip()
        if mark.startswith(rest) and rest != mark:
            return False
        self._unread = rest.removeprefix(mark)
        self._in = _In.TEXT
        return True

    def _end(self) -> None:
        if self._in is _In.CALL and self._sent is None:
            self._text.append(self._held)
        if self._in in (_In.START, _In.TEXT, _In.CALL):
            if self._in is _In.CALL or not self.num_calls or self._unread.strip(_BLANK):
                self._text.append(self._unread)
        if self._in is _In.AFTER and not self._form.anywhere:
            self._text.append(self._unread.lstrip(_BLANK + ",;"))
        self._unread = self._held = ""


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text with which the mark may have begun."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)


def _written_call(scanner: MemberScanner, names: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of an object that has both, as far as they have come."""
    key = next((key for key in _ARGUMENTS if key in scanner.values), None)
    open_ = key is not None and key == scanner.key and not scanner.complete
    name = None
    if scanner.key != "name" or scanner.complete:
        name = _string(scanner.values.get("name", ""))
    if name not in names or name is None or (key is None and not scanner.ended):
        return None
    written = scanner.values[key] if key is not None else "{}"
    if written.startswith("{"):
        return name, written
    decoded = None if open_ else _string(written)
    return None if decoded is None else (name, decoded)  # JSON in a string, as some write it


def _string(written: str) -> str | None:
    try:
        value = json.loads(written)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _new_id(form: ToolFormat) -> str:
    """Mistral's templates take back only ids of nine letters and digits."""
    if form in _MISTRALS:
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"
