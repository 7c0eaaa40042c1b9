"""What the Guard did, told to whom it concerns: log, trace, figures, and who is to be called.

Owns where moves are told, and how often there was each kind. Whoever is called is called in the
background (``deployments.webhooks``); the ledgers of the workers have it from the Controls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from chairlift.cluster.guard_policy import Webhook
from chairlift.cluster.guard_state import Move, MoveKind
from chairlift.cluster.tracing import Attributes, Tracer
from chairlift.deployments.guard_view import describe, move_view, rung_name
from chairlift.deployments.webhooks import CallCounts, Pager, Patience

__all__ = ["GuardEvents", "Origin"]

logger = logging.getLogger(__name__)

LOUD = (MoveKind.UP, MoveKind.WAIT, MoveKind.FREEZE)
"""Something is wrong; all else is told for the record."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose Guard it is, for people who are called by several."""

    service: str
    model: str


class GuardEvents:
    """Tells every move once; belongs to the Hub's event loop.

    Attributes:
        calls: that were made to people.
    """

    def __init__(
        self,
        origin: Origin,
        webhooks: Sequence[Webhook],
        tracer: Tracer | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.calls = CallCounts()
        self._origin = origin
        self._tracer = tracer
        self._pagers = [(each, Pager(each.url, self.calls, patience)) for each in webhooks]
        self._moves: Counter[tuple[str, str, str]] = Counter()

    def tell(self, moves: Sequence[Move]) -> None:
        """Returns at once."""
        for move in moves:
            # Kinds, signals and rungs are few, so this stays small.
            self._moves[move.kind.value, move.signal, rung_name(move.after)] += 1
            level = logging.WARNING if move.kind in LOUD else logging.INFO
            logger.log(level, "the Guard: %s", describe(move))
            self._trace(move)
            if move.calls:
                self._call(move)

    def totals(self) -> list[dict[str, Any]]:
        """How many moves there were of each kind, signal and rung that they led to."""
        return [
            {"kind": kind, "signal": signal, "rung": rung, "count": count}
            for (kind, signal, rung), count in sorted(self._moves.items())
        ]

    async def close(self) -> None:
        for _, pager in self._pagers:
            await pager.close()

    def _trace(self, move: Move) -> None:
        if self._tracer is not None:
            now = self._tracer.clock()
            span = self._tracer.begin(f"guard.{move.kind.value}", None, now)
            span.end(now, _attributes(move))

    def _call(self, move: Move) -> None:
        body = move_view(move) | {
            "id": f"{self._origin.service}-{move.version}-{move.kind.value}",
            "service": self._origin.service,
            "model": self._origin.model,
        }
        for webhook, pager in self._pagers:
            if not webhook.owners or move.owner in webhook.owners:
                pager.post(orjson.dumps(body))


def _attributes(move: Move) -> Attributes:
    return {name: value for name, value in move_view(move).items() if value is not None}
