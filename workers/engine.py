"""The loop: queue, plan, advance, retire, refill.

Owns the order of the stages, what is told to the outside after a step, and what happens when a
stage fails. It decides nothing about sequences (``scheduler``) and computes no token (the runner).

What each stage decided is told to the ledger at its end, where there is one.

One thread runs the engine; the others talk to the intake, and read ``load``, ``failed`` and
``stuck_for``. Whatever happens, each accepted sequence gets exactly one last delta:

    the runner fails       the sequences of that step end as FAILED, the others go on
    the sink fails         what it should have been told is lost, the loop goes on
    a rank fails           the loop is over, everything open ends as HANDED_OVER
    anything else fails    the loop is over, everything open ends as FAILED
    stop                   the same: CANCELLED is only what somebody asked to be cancelled
    hand_over              what is open ends as HANDED_OVER, nothing comes in, the loop goes on

Every rank of a group runs this same loop on the same inputs (``ranks``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.cluster.protocol import BlockEvents, Delta, FinishReason, LoadReport
from chairlift.workers.intake import Drained, Source
from chairlift.workers.ledger import Ledger
from chairlift.workers.pace import Pace
from chairlift.workers.rank_faults import RankFault
from chairlift.workers.scheduler import Outcome, Scheduler
from chairlift.workers.sequence import Admission, Runner, StepPlan, StepResult

__all__ = ["Engine", "StepOutput"]

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""Failed steps after which the runner itself counts as broken."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did: deltas by origin, the load after it, changes of the prefix cache."""

    deltas: dict[int, list[Delta]]
    load: LoadReport
    blocks: BlockEvents | None = None


class Engine:
    """One replica's loop.

    Args:
        scheduler: used by this engine alone.
        runner: computes the steps.
        intake: where requests come in.
        sink: told after each step that changed anything, in the engine's thread; must not block.
        clock: monotonic seconds.
        ledger: records what each stage decides; made for the same scheduler and clock.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        intake: Source,
        sink: Callable[[StepOutput], None],
        clock: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        self.load = scheduler.load(step=0)
        self._scheduler = scheduler
        self._runner = runner
        self._intake = intake
        self._sink = sink
        self._clock = clock
        self._ledger = ledger
        self._pace = Pace()
        self._stopping = False
        self._step_started: float | None = None
        self._left: set[int] = set()
        self._failures = 0
        self._runner_error = ""
        self._fatal_error: str | None = None

    @property
    def failed(self) -> str | None:
        """Why this engine should be replaced, or None while it is sound."""
        if self._fatal_error is None and self._failures >= FAILURES_IN_A_ROW:
            return f"{self._failures} steps failed in a row: {self._runner_error}"
        return self._fatal_error

    def stuck_for(self) -> float:
        """Seconds that the present step has taken so far; 0.0 between steps and when idle."""
        started = self._step_started
        return 0.0 if started is None else self._clock() - started

    def run(self) -> None:
        """Take turns until ``stop``, sleeping while there is nothing to do."""
        finish = FinishReason.FAILED
        try:
            while not self._stopping:
                if not self.step() and not self._stopping:
                    self._intake.wait()
        except Exception as error:
            if isinstance(error, RankFault):
                finish = FinishReason.HANDED_OVER
            logger.exception("the engine's loop failed")
            self._fatal_error = f"the engine's loop failed: {_describe(error)}"
            if self._ledger is not None:
                self._ledger.report("failed-loop", self._fatal_error)
        finally:
            self._end_everything(finish)

    def stop(self) -> None:
        """End the loop after the step that hears of it; may be called from any thread."""
        self._intake.stop()

    def hand_over(self) -> None:
        """Take nothing more in, and end at the next chance what is open; from any thread.

        A step that is under way is finished first, and its tokens are told.
        """
        self._intake.hand_over()

    def step(self) -> bool:
        """Take one turn; False when there was nothing to do.

        A sequence that arrives while others run, even during ``advance``, is admitted in this
        turn and runs in the next one.
        """
        self._step_started = self._clock()
        if self._ledger is not None:
            self._ledger.begin(self.load.step + 1)
        outcomes = self._queue()
        plan = self._plan()
        result = self._advance(plan)
        outcomes += self._retire(plan, result)
        admission = self._refill()
        busy = bool(plan.slices or outcomes or admission.admitted)
        if busy:
            pace = self._pace
            load = self._scheduler.load(self.load.step + 1, pace.taken_s, pace.predicted_s)
            self._publish(outcomes, load, self._scheduler.take_block_events())
        else:
            _check_idle(self._scheduler)
        self._step_started = None
        return busy

    def _queue(self) -> list[Outcome]:
        """1: take in what came, and end what is cancelled."""
        drained = self._drain()
        outcomes = self._scheduler.cancel(drained.cancelled)
        if drained.hand_over:
            outcomes += self._scheduler.hand_over()
        if self._ledger is not None:
            self._ledger.queued(drained, outcomes)
        return outcomes

    def _plan(self) -> StepPlan:
        """2: form the active tokens."""
        plan = self._scheduler.plan()
        if self._ledger is not None:
            self._ledger.planned(plan)
        return plan

    def _advance(self, plan: StepPlan) -> StepResult | None:
        """3: one forward pass, one sampling; None when the runner failed."""
        result: StepResult | None = StepResult(())
        if plan.slices:
            began = self._clock()
            try:
                result = _checked(plan, self._runner.advance(plan))
                self._failures = 0
                self._pace.observe(plan.num_tokens, plan.kv_read, self._clock() - began)
            except RankFault:
                raise
            except Exception as error:
                logger.exception("a step of %d sequences failed", len(plan.slices))
                self._failures += 1
                self._runner_error = _describe(error)
                result = None
        if self._ledger is not None:
            self._ledger.advanced(result)
        return result

    def _retire(self, plan: StepPlan, result: StepResult | None) -> list[Outcome]:
        """4: end what is finished; what was cancelled meanwhile emits nothing more."""
        drained = self._drain()
        outcomes = self._scheduler.retire(plan, result, drained.cancelled)
        if drained.hand_over:
            outcomes += self._scheduler.hand_over()
        if self._ledger is not None:
            self._ledger.retired(plan, drained, outcomes)
        return outcomes

    def _refill(self) -> Admission:
        """5: give freed capacity to who is next."""
        admission = self._scheduler.refill()
        if self._ledger is not None:
            self._ledger.refilled(admission)
        return admission

    def _drain(self) -> Drained:
        """Let the scheduler know of all that came, save for what is to end."""
        drained = self._intake.drain()
        if drained.controls is not None:
            self._scheduler.set_controls(drained.controls)
        self._scheduler.add(drained.arrivals)
        self._left |= drained.left
        self._stopping |= drained.stop
        return drained

    def _publish(
        self, outcomes: list[Outcome], load: LoadReport, blocks: BlockEvents | None = None
    ) -> None:
        """Tell the sink, after making room: who hears of an end may at once submit again."""
        self.load = load
        self._intake.end([outcome.key for outcome in outcomes if outcome.finish is not None])
        deltas: dict[int, list[Delta]] = {}
        for outcome in outcomes:
            origin = outcome.key.origin
            if origin not in self._left:
                deltas.setdefault(origin, []).append(_delta(outcome))
        self._left.clear()
        try:
            self._sink(StepOutput(deltas, load, blocks))
        except Exception:
            logger.exception("the sink failed; the deltas of one step are lost")

    def _end_everything(self, finish: FinishReason) -> None:
        """Close the door and end all that is open, for this loop will not run again.

        The scheduler is not asked, it may be what failed; the intake knows who still waits.
        """
        self._step_started = None
        self._intake.close()
        outcomes = [Outcome(key, (), finish) for key in self._intake.open_keys()]
        idle = self.load._replace(running=0, waiting=0, waiting_tokens=0, blocks_used=0)
        self._publish(outcomes, idle)
        if self._ledger is not None:
            self._ledger.close()


def _check_idle(scheduler: Scheduler) -> None:
    """Nothing to do must mean that nothing is open, or somebody would wait for ever."""
    scheduler.check_integrity()
    if scheduler.num_open:
        raise RuntimeError(f"{scheduler.num_open} sequences are open, but none can run")


def _checked(plan: StepPlan, result: StepResult) -> StepResult:
    expected = sum(piece.samples for piece in plan.slices)
    if len(result.tokens) != expected:
        raise RuntimeError(f"{expected} tokens were due, {len(result.tokens)} came")
    return result


def _delta(outcome: Outcome) -> Delta:
    key, tokens, finish, cached_tokens, logprobs, prompt_logprobs = outcome
    return Delta(key.handle, tokens, finish, cached_tokens, logprobs, prompt_logprobs)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
