"""The ledger's files: dumps after an anomaly, and a journal that is always written.

Owns names, rotation and the bound on the disk; knows nothing of what the bytes mean. Files of all
replicas that use one folder share the bound, and the oldest go first. They hold the tokens of
prompts and answers, so nobody but the service's own user may read them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

__all__ = ["SUFFIX", "LedgerFolder"]

logger = logging.getLogger(__name__)

SUFFIX = ".ledger"


class LedgerFolder:
    """A folder of ledger files. A disk that cannot be written is logged, never an error.

    Args:
        path: made when the first file is written.
        owner: begins every name; of the replica.
        max_bytes: of all ledger files in the folder, a new one's share included.
        wall_clock: seconds since 1970, for names.
    """

    JOURNALS = 4
    """Files that the journal has at least, within the bound, so that dropping one loses little."""
    PENDING = 1 << 18
    """Bytes that are written together: whole records, so that a reader never sees a part of one."""

    def __init__(
        self,
        path: Path,
        owner: str,
        max_bytes: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._owner = re.sub(r"[^\w.-]", "_", owner)
        self._max_bytes = max_bytes
        self._wall_clock = wall_clock
        self._files = 0
        self._journal: FileIO | None = None
        self._pending = bytearray()
        self._journal_size = 0

    def dump(self, reason: str, parts: Iterable[bytes]) -> Path | None:
        """Write one file; returns where it is, or None when it could not be written."""
        content = b"".join(parts)
        path = self._new_path(reason)
        try:
            self._make_room(len(content))
            with open(path, "wb", buffering=0, opener=_for_us_alone) as file:
                file.write(content)
        except OSError as error:
            logger.warning("the ledger cannot be written to %s: %s", path, error)
            return None
        return path

    def open_journal(self, header: bytes) -> None:
        """Go on in a new file."""
        self.close()
        path = self._new_path("journal")
        try:
            self._make_room(self._max_bytes // self.JOURNALS)
            self._journal = open(path, "wb", buffering=0, opener=_for_us_alone)
        except OSError as error:
            logger.warning("the ledger cannot be written to %s: %s", path, error)
            return
        self._journal_size = 0
        self.write(header)
        self.flush()

    @property
    def journal_is_full(self) -> bool:
        """True when the next good moment for a new file should be taken."""
        return self._journal_size > self._max_bytes // (2 * self.JOURNALS)

    def write(self, record: bytes) -> None:
        """Append to the journal, if there is one."""
        if self._journal is not None:
            self._pending += record
            self._journal_size += len(record)
            if len(self._pending) >= self.PENDING:
                self.flush()

    def flush(self) -> None:
        """Let readers see all that was written. A disk that is full ends the journal."""
        if self._journal is None:
            return
        try:
            written = self._journal.write(self._pending)
            if written != len(self._pending):
                raise OSError(f"{len(self._pending)} bytes were to be written, {written} were")
        except OSError as error:
            logger.warning("the ledger's journal ends here: %s", error)
            self._journal.close()
            self._journal = None
        self._pending.clear()

    def close(self) -> None:
        self.flush()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _new_path(self, reason: str) -> Path:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall_clock()))
        self._files += 1
        return self._path / f"{self._owner}-{now}-{self._files:04d}-{reason}{SUFFIX}"

    def _make_room(self, size: int) -> None:
        """Remove the oldest files until a new one of ``size`` bytes is within the bound."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes: dict[Path, tuple[float, int]] = {}
        for path in self._path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another replica may have removed it
                facts = path.stat()
                sizes[path] = facts.st_mtime, facts.st_size
        total = sum(length for _, length in sizes.values()) + size
        for path in sorted(sizes, key=lambda path: (sizes[path][0], path.name)):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= sizes[path][1]


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
