"""What a trace tells of a request's time at this replica: one ``engine`` span for each visit.

Owns the visits that are traced, from when the engine takes a sequence in until it has ended here,
for whatever reason. The engine's thread only notes both; the spans are made by the server's
heartbeat. Steps cost nothing, and tokens neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chairlift.cluster.protocol import FinishReason
from chairlift.cluster.traceparent import TraceParent, read_traceparent
from chairlift.cluster.tracing import AttributeValue, Tracer
from chairlift.workers.sequence import Sequence, SequenceKey

__all__ = ["Visits"]

MAX_UNTOLD = 4096
"""Visits that have ended and are not told; further ones push the oldest out."""


@dataclass(slots=True)
class _Visit:
    """Times are of the tracer's clock; ``step`` is the last one before it came."""

    parent: TraceParent
    sequence: Sequence
    brought: int
    step: int
    begin: float
    last_step: int = 0
    end: float = 0.0


class Visits:
    """The ``Watch`` of one intake; bounded by the sequences that may be open."""

    def __init__(self, tracer: Tracer, replica_id: str, step: Callable[[], int]) -> None:
        """``step``: number of the engine's last finished step."""
        self._tracer = tracer
        self._replica_id = replica_id
        self._step = step
        self._open: dict[SequenceKey, _Visit] = {}
        self._untold: deque[_Visit] = deque(maxlen=MAX_UNTOLD)

    def came(self, sequence: Sequence, traceparent: str) -> None:
        """Note it, if its trace is recorded."""
        parent = read_traceparent(traceparent)
        if parent is not None and parent.sampled:
            visit = _Visit(parent, sequence, sequence.num_output, self._step(), self._now())
            self._open[sequence.key] = visit

    def ended(self, keys: Iterable[SequenceKey]) -> None:
        for key in keys:
            visit = self._open.pop(key, None)
            if visit is not None:
                visit.last_step, visit.end = self._step(), self._now()
                self._untold.append(visit)

    def tell(self) -> None:
        """Make the spans of what has ended; from any thread but the engine's."""
        while self._untold:
            visit = self._untold.popleft()
            span = self._tracer.begin("engine", visit.parent, visit.begin)
            finish = visit.sequence.finish
            failed = finish is None or finish is FinishReason.FAILED
            span.end(visit.end, self._about(visit), error="engine_failed" if failed else None)

    def close(self) -> None:
        """Tell what is left, and send it; blocks for a moment."""
        self.tell()
        self._tracer.close()

    def _now(self) -> float:
        return self._tracer.clock()

    def _about(self, visit: _Visit) -> dict[str, AttributeValue]:
        sequence = visit.sequence
        # Without a reason the engine's loop broke off under it.
        finish = sequence.finish or FinishReason.FAILED
        return {
            "chairlift.replica": self._replica_id,
            "chairlift.request.id": sequence.request_id,
            "chairlift.choice": sequence.choice,
            "chairlift.finish_reason": finish.name.lower(),
            "chairlift.first_step": visit.step + 1,
            "chairlift.steps": visit.last_step - visit.step,
            "chairlift.prompt_tokens": sequence.num_prompt,
            "chairlift.cached_tokens": sequence.num_cached,
            "chairlift.brought_tokens": visit.brought,
            "chairlift.output_tokens": sequence.num_output - visit.brought,
            "chairlift.preemptions": sequence.preemptions,
        }
