"""Stop strings: cutting a stream of text before the first one that completes.

Owns the search over text that arrives in pieces, and which characters must wait for the next
piece. It knows no tokens.
"""

from __future__ import annotations

__all__ = ["StopScanner"]


class StopScanner:
    """Passes text on up to the first stop string, and never a part of that.

    The stop string that completes first wins; of those that complete with the same character,
    the longest. Text is withheld only while it is the beginning of a stop string:

        text so far    … a b c <eos          stop strings: <eos>, <end>
        passed on      …─────┘ └──┘ withheld

    Each stop string is searched with the failure function of Knuth, Morris and Pratt, so the
    cost of a character is constant on average, and what each has matched is at any moment the
    longest end of the text that is a beginning of it.
    """

    __slots__ = ("_matched", "_stops", "_withheld", "stopped")

    def __init__(self, stops: tuple[str, ...]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string would stop before the first character")
        self._stops = [(stop, _failure(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._withheld = ""
        self.stopped = False

    @property
    def num_withheld(self) -> int:
        """Characters that wait for the next piece."""
        return len(self._withheld)

    def feed(self, text: str) -> str:
        """The text that no stop string can claim any more; nothing once one is complete."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        pending = self._withheld + text
        for end, character in enumerate(text, start=len(self._withheld) + 1):
            if length := self._advance(character):
                self.stopped = True
                self._withheld = ""
                return pending[: end - length]
        safe = len(pending) - max(self._matched)
        self._withheld = pending[safe:]
        return pending[:safe]

    def finish(self) -> str:
        """What was withheld, as no more text comes."""
        rest, self._withheld = self._withheld, ""
        return rest

    def _advance(self, character: str) -> int:
        """Take one character; the length of the longest stop string it completes, else 0."""
        completed = 0
        for index, (stop, failure) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = failure[matched - 1]
            matched += stop[matched] == character
            self._matched[index] = matched
            if matched == len(stop):
                completed = max(completed, matched)
        return completed


def _failure(stop: str) -> list[int]:
    """For each beginning of ``stop``: length of its longest proper end that begins ``stop``."""
    failure = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = failure[matched - 1]
        matched += stop[matched] == stop[index]
        failure[index] = matched
    return failure
