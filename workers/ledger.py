"""The recorder of one engine: what each stage decided, from what, and what it cost.

Owns the moment of recording: one record at each of the five stage boundaries, a snapshot now and
then, and a file when something is wrong. It decides nothing, and the engine runs the same without
it. Its methods are called by the engine's thread alone.

A snapshot is due when a quarter of the ring was written since the last one. So the ring, whatever
it has dropped, holds a whole snapshot and all that followed, as long as one takes less than half
of it: a place from which everything can be replayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from chairlift.cluster.protocol import FinishReason
from chairlift.workers import ledger_codec as codec
from chairlift.workers.intake import Drained
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.ledger_format import STAGE, frame, pack_header
from chairlift.workers.ledger_records import Header, Stage
from chairlift.workers.ledger_ring import Ring
from chairlift.workers.predictor import OutputLengths, StepTime
from chairlift.workers.scheduler import Outcome, Scheduler
from chairlift.workers.sequence import Admission, StepPlan, StepResult
from chairlift.workers.snapshot import blocks_used, capture

__all__ = ["Ledger", "LedgerClocks"]

logger = logging.getLogger(__name__)

SLOW_FACTOR = 8.0
"""A step that took this many times what was predicted is an anomaly."""
SLOW_AT_LEAST_S = 0.05
"""Below this nothing is: other processes steal as much at any time."""
DUMP_PERIOD_S = 60.0
"""Anomalies sooner after a dump are noted, but not written to disk."""
FLUSH_PERIOD_S = 1.0
"""How far behind the engine the journal on disk may be while steps are taken."""
MOST_SNAPSHOTS = 8
"""Whose places are remembered; the ring seldom holds more."""
_OWN_END = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class LedgerClocks:
    """Where times come from: the engine's clock, processor time of its thread, time of day."""

    monotonic: Callable[[], float] = time.monotonic
    cpu: Callable[[], float] = time.thread_time
    wall: Callable[[], float] = time.time


class Ledger:
    """Records what an engine does.

    Args:
        scheduler: the engine's.
        header: what to say of the engine; its times are filled in here.
        ring_bytes: memory for the newest records.
        folder: where anomalies are written; None for nowhere.
        always: write every record to the folder, not only after an anomaly.
        clocks: the first must be the engine's.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        header: Header,
        *,
        ring_bytes: int,
        folder: LedgerFolder | None = None,
        always: bool = False,
        clocks: LedgerClocks = LedgerClocks(),
    ) -> None:
        self.step_time = StepTime()
        self.output_lengths = OutputLengths()
        now = clocks.monotonic()
        self._header = pack_header(replace(header, started_at=clocks.wall(), clock_at=now))
        self._scheduler = scheduler
        self._ring = Ring(ring_bytes)
        self._folder = folder
        self._journal = folder if always else None
        self._clocks = clocks
        self._since_snapshot: int | None = None
        self._snapshots: tuple[tuple[int, int], ...] = ()  # steps, and positions in the ring
        self._step = 0
        self._at = self._cpu_at = 0.0
        self._predicted: float | None = None
        self._load = 0, 0
        self._anomaly = ""
        self._dumped_at: float | None = None
        self._flushed_at = 0.0
        if self._journal is not None:
            self._journal.open_journal(self._header)

    def content(self) -> bytes:
        """A ledger file of what the ring holds."""
        return self._header + self._ring.content()

    def parts(self, steps: int, pause_s: float) -> list[bytes]:
        """The same in pieces, with pauses; for any thread, see ``ledger_ring``.

        Args:
            steps: 0 for all of it; else only what goes back so many steps, to the newest snapshot
                before them if there is one.
            pause_s: after each piece.
        """
        first = self._step - steps
        since = max((at for step, at in self._snapshots if steps and step <= first), default=0)
        return [self._header, *self._ring.parts(since, pause_s)]

    def begin(self, step: int) -> None:
        """A turn begins; a snapshot is taken when one is due."""
        self._step = step
        if self._since_snapshot is None or self._since_snapshot >= self._ring.capacity // 4:
            self._take_snapshot()
        self._at, self._cpu_at = self._clocks.monotonic(), self._clocks.cpu()
        if self._journal is not None and self._at - self._flushed_at >= FLUSH_PERIOD_S:
            self._flushed_at = self._at
            self._journal.flush()

    def queued(self, drained: Drained, outcomes: Iterable[Outcome]) -> None:
        tokens = sum(sequence.num_prompt for sequence in drained.arrivals)
        body = codec.pack_inputs(drained) + codec.pack_endings(outcomes)
        self._record(Stage.QUEUE, tokens, body)

    def planned(self, plan: StepPlan) -> None:
        tokens, kv_read = plan.num_tokens, plan.kv_read
        self._load = tokens, kv_read
        self._predicted = self.step_time.predict(tokens, kv_read) if tokens else None
        self._record(Stage.PLAN, tokens, codec.pack_plan(plan))

    def advanced(self, result: StepResult | None) -> None:
        """``result`` is None when the runner failed."""
        tokens, kv_read = self._load
        sampled = None if result is None else list(result.tokens)
        body = codec.pack_advance(sampled, self._predicted, kv_read)
        seconds = self._record(Stage.ADVANCE, tokens if result is not None else 0, body)
        if result is None:
            self._anomaly = "failed-step"
        elif tokens:
            self._judge(seconds)
            self.step_time.observe(tokens, kv_read, seconds)

    def retired(self, plan: StepPlan, drained: Drained, outcomes: Iterable[Outcome]) -> None:
        outcomes = list(outcomes)
        tokens = sum([len(outcome.tokens) for outcome in outcomes])
        body = codec.pack_inputs(drained) + codec.pack_endings(outcomes)
        self._record(Stage.RETIRE, tokens, body)
        for piece in plan.slices:
            sequence = piece.sequence
            if sequence.finish in _OWN_END:
                self.output_lengths.add(sequence.tenant, sequence.num_output)

    def refilled(self, admission: Admission) -> None:
        """The last stage; an anomaly of this step is written to disk now that all of it is here."""
        remaining = [
            self.output_lengths.remaining(
                each.tenant, each.num_output, each.sampling.max_tokens - each.num_output
            )
            for each in admission.admitted
        ]
        tokens = sum(each.num_pending for each in admission.admitted)
        self._record(Stage.REFILL, tokens, codec.pack_refill(admission, remaining))
        if self._anomaly:
            anomaly, self._anomaly = self._anomaly, ""
            self.report(anomaly, anomaly)

    def report(self, kind: str, text: str) -> None:
        """Note an anomaly, and write the ring to disk unless that was done a moment ago."""
        now = self._clocks.monotonic()
        self._append(codec.pack_note(self._step, now, text))
        if self._folder is None:
            return
        if self._dumped_at is None or now - self._dumped_at >= DUMP_PERIOD_S:
            self._dumped_at = now
            path = self._folder.dump(kind, (self._header, self._ring.content()))
            logger.warning("anomaly in step %d: %s; the ledger is in %s", self._step, text, path)

    def close(self) -> None:
        """The engine is over."""
        if self._journal is not None:
            self._journal.close()

    def _judge(self, seconds: float) -> None:
        predicted = self._predicted
        if predicted is not None and seconds > max(SLOW_FACTOR * predicted, SLOW_AT_LEAST_S):
            self._anomaly = "slow-step"

    def _record(self, stage: Stage, tokens: int, body: bytes) -> float:
        """Write a record; returns the seconds since the last boundary."""
        at, cpu = self._clocks.monotonic(), self._clocks.cpu()
        seconds = at - self._at
        scheduler = self._scheduler
        head = STAGE.pack(
            stage,
            self._step,
            scheduler.controls.version,
            at,
            seconds,
            cpu - self._cpu_at,
            len(scheduler.running),
            len(scheduler.waiting),
            blocks_used(scheduler),
            tokens,
        )
        self._append(head + body)
        # Read again, so that recording is counted to no stage.
        self._at, self._cpu_at = self._clocks.monotonic(), self._clocks.cpu()
        return seconds

    def _append(self, payload: bytes) -> None:
        record = frame(payload)
        if not self._ring.append(record):
            self._since_snapshot = None  # what follows cannot be replayed without one
            self._ring.append(frame(codec.pack_gap(self._step, len(record))))
        elif self._since_snapshot is not None:
            self._since_snapshot += len(record)
        if self._journal is not None:
            self._journal.write(record)

    def _take_snapshot(self) -> None:
        record = frame(codec.pack_snapshot(self._step, capture(self._scheduler)))
        self._since_snapshot = 0
        if len(record) <= self._ring.capacity // 2:
            place = self._step, self._ring.end
            self._snapshots = (*self._snapshots[1 - MOST_SNAPSHOTS :], place)
            self._ring.append(record)
        if self._journal is not None:
            if self._journal.journal_is_full:
                self._journal.open_journal(self._header)
            self._journal.write(record)
