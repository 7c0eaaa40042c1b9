"""A JSON object's members, while its text is still coming.

Owns where members begin and end; what stands within a value is looked at only as far as that takes,
so a value may be no JSON at all. It knows no fields.
"""

from __future__ import annotations

import enum
import json

__all__ = ["MemberScanner"]

_BLANK = " \t\r\n"


class _At(enum.Enum):
    OPENING = "the brace before all members"
    KEY = "a key, or the closing brace"
    COLON = "behind a key"
    VALUE = "before a value"
    WITHIN = "in a value"
    BEHIND = "behind a value"


class MemberScanner:
    """Takes text character by character.

    Attributes:
        values: of the members, as they are written; that of the last one may be unfinished.
        key: of the last member.
        ended: the object is complete.
        failed: it is none.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.key = ""
        self.ended = False
        self.failed = False
        self._at = _At.OPENING
        self._token = ""  # a key that is being read
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def complete(self) -> bool:
        """Whether the last member's value has come to its end."""
        return self._at is not _At.WITHIN

    def feed(self, text: str) -> int:
        """Read on, as far as the object reaches; returns how many characters that took."""
        for number, character in enumerate(text):
            if self.ended or self.failed:
                return number
            self._step(character)
        return len(text)

    def _step(self, character: str) -> None:
        if self._at is _At.WITHIN:
            self._within(character)
        elif self._token:
            self._in_key(character)
        elif character not in _BLANK:
            self._between(character)

    def _between(self, character: str) -> None:
        """Where only one thing may come, or two."""
        match self._at, character:
            case _At.OPENING, "{":
                self._at = _At.KEY
            case _At.KEY, '"':
                self._token = character
            case ((_At.KEY | _At.BEHIND), "}"):
                self.ended = True
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.BEHIND, ",":
                self._at = _At.KEY
            case _At.VALUE, _ if character not in ",}]:":
                self.values[self.key] = ""
                self._at = _At.WITHIN
                self._within(character)
            case _:
                self.failed = True

    def _in_key(self, character: str) -> None:
        self._token += character
        if self._string_ends(character):
            try:
                self.key = json.loads(self._token)
            except ValueError:
                self.failed = True
            self._token, self._at = "", _At.COLON

    def _within(self, character: str) -> None:
        value = self.values[self.key]
        if self._in_string:
            if self._string_ends(character):
                self._in_string = False
                self._close(value + character)
                return
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and self._depth:
            self._depth -= 1
            self._close(value + character)
            return
        elif character in ",}" and not self._depth:  # behind a number or a word
            self.values[self.key] = value.rstrip(_BLANK)
            self._at = _At.BEHIND
            self._between(character)
            return
        self.values[self.key] = value + character

    def _close(self, value: str) -> None:
        """A string or a bracket has ended, and with it perhaps the value."""
        self.values[self.key] = value
        if not self._depth:
            self._at = _At.BEHIND

    def _string_ends(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
            return False
        self._escaped = character == "\\"
        return character == '"'
