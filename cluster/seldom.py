"""Log lines that strangers can cause, and so must not be able to fill a disk with.

Owns how often: each subject once a period, with the number of those that were left out since, and
a bounded number of subjects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Seldom"]

PERIOD_S = 10.0
MAX_SUBJECTS = 64


class Seldom:
    """Warns now and then; for one thread."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def warn(self, subject: str, text: str) -> None:
        """Say ``text``, unless something of its subject was said within the period."""
        now = self._clock()
        at, left_out = self._said.get(subject, (now - PERIOD_S, 0))
        if now < at + PERIOD_S:
            self._said[subject] = at, left_out + 1
            return
        if subject not in self._said and len(self._said) >= MAX_SUBJECTS:
            self._said.clear()
        self._said[subject] = now, 0
        more = f" ({left_out} more since the last time)" if left_out else ""
        self._logger.warning("%s%s", text, more)
