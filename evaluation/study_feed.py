"""Hands the requests of a run to an engine in the same thread, each at its time.

Owns the pacing and what clients see: when they wanted to send, when they could, what came, and that
they left. It knows nothing of arms. It is called while the engine is between two parts of its work,
so a request that falls due during a step is handed over right after the forward pass, where the
threads of a service would have put it meanwhile, and the engine takes it in at the same point as
theirs.

Latency counts from the intended time, wherever the delay is from. The generator's lag does not
count the step that was under way, for that is the engine's time:

    due          the engine is back       handed over
     │─── step ─────────│──── lag ────────────│          sent_s = intended_s + lag
     │──────────────── latency counts ─────────────────►
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.cluster.protocol import FinishReason, Request, SamplingParams, Submission
from chairlift.evaluation.engine_run import digest_of
from chairlift.evaluation.study_arm import Lone
from chairlift.evaluation.study_run import Fate, Outcome
from chairlift.evaluation.study_work import Asked
from chairlift.workers.engine import StepOutput
from chairlift.workers.intake import Intake

__all__ = ["ORIGIN", "Feed"]

ORIGIN = 1


@dataclass(slots=True)
class _Client:
    """One request while it is open; times are from the start of the run."""

    asked: Asked
    able_s: float | None = None
    sent_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    tokens_s: list[float] = field(default_factory=list)
    fate: Fate | None = None
    why: str = ""
    ended_s: float = 0.0

    @property
    def leaves_s(self) -> float:
        """When it gives up, unless a token has come by then."""
        patience_s = self.asked.gives_up_after_s
        if self.tokens or patience_s is None:
            return math.inf
        return self.asked.at_s + patience_s

    def end(self, fate: Fate, at_s: float, why: str = "") -> None:
        self.fate, self.ended_s, self.why = fate, at_s, why


class Feed:
    """The clients of one run.

    Attributes:
        unfinished: clients that have not ended.
    """

    def __init__(
        self,
        asked: Sequence[Asked],
        intake: Intake,
        clock: Callable[[], float],
        late_s: float = 0.0,
    ) -> None:
        """Start now; each is sent ``late_s`` later than the one before it, beside its own time."""
        self.unfinished = len(asked)
        self._intake = intake
        self._clock = clock
        self._start = self._back_s = clock()
        self._clients = {each.number: _Client(each) for each in asked}
        self._due = [self._clients[each.number] for each in sorted(asked, key=_in_time)]
        self._late_s = late_s
        self._able = self._sent = 0
        self._impatient = [each for each in self._due if each.leaves_s < math.inf]

    @property
    def now(self) -> float:
        """Seconds from the start."""
        return self._clock() - self._start

    @property
    def next_s(self) -> float:
        """When there is something to do next; endless where there is nothing."""
        leaves = [each.leaves_s for each in self._impatient]
        if self._sent < len(self._due):
            leaves.append(self._when(self._sent))
        return min(leaves, default=math.inf)

    def back(self) -> None:
        """The engine lets go of the thread: hand over what is due, let go who is tired."""
        self._back_s = self.now
        self.deliver()

    def deliver(self) -> None:
        """The same while the engine was idle."""
        while self._able < len(self._due) and self._due[self._able].asked.at_s <= self.now:
            client = self._due[self._able]
            client.able_s = max(client.asked.at_s, min(self._back_s, self.now))
            self._able += 1
        while self._sent < len(self._due) and self._when(self._sent) <= self.now:
            self._submit(self._due[self._sent])
            self._sent += 1
        self._let_go()

    def take(self, output: StepOutput) -> None:
        """The engine's sink."""
        now = self.now
        for delta in output.deltas.get(ORIGIN, ()):
            client = self._clients[delta.handle]
            if client.fate is not None:
                continue
            client.tokens += delta.tokens
            client.tokens_s += [now] * len(delta.tokens)
            if delta.finish is FinishReason.LENGTH:
                self._end(client, Fate.COMPLETED, now)
            elif delta.finish is not None:
                self._end(client, Fate.FAILED, now, delta.finish.name.lower())

    def outcomes(self, lone: Lone) -> tuple[Outcome, ...]:
        """Of all clients, once all have ended."""
        return tuple(_outcome(each, lone) for _, each in sorted(self._clients.items()))

    def _when(self, index: int) -> float:
        return self._due[index].asked.at_s + index * self._late_s

    def _submit(self, client: _Client) -> None:
        if client.fate is not None:
            return  # it was tired of waiting before its request was sent
        asked = client.asked
        sampling = SamplingParams(max_tokens=asked.output, temperature=0.0, ignore_eos=True)
        request = Request(id=str(asked.number), prompt=asked.prompt, sampling=sampling)
        answer = self._intake.submit(ORIGIN, Submission(asked.number, request))
        able_s = asked.at_s if client.able_s is None else client.able_s
        client.sent_s = asked.at_s + self.now - able_s
        if answer.refusal is not None:
            self._end(client, Fate.REFUSED, self.now, answer.refusal.name.lower())

    def _let_go(self) -> None:
        waiting = []
        for client in self._impatient:
            if client.fate is None and client.leaves_s <= self.now:
                self._intake.cancel(ORIGIN, (client.asked.number,))
                self._end(client, Fate.GAVE_UP, client.leaves_s, "gave_up")
            elif client.fate is None and not client.tokens:
                waiting.append(client)
        self._impatient = waiting

    def _end(self, client: _Client, fate: Fate, at_s: float, why: str = "") -> None:
        client.end(fate, at_s, why)
        self.unfinished -= 1


def _in_time(asked: Asked) -> tuple[float, int]:
    return asked.at_s, asked.number


def _outcome(client: _Client, lone: Lone) -> Outcome:
    asked = client.asked
    return Outcome(
        number=asked.number,
        tenant=asked.tenant,
        prompt=len(asked.prompt),
        asked=asked.output,
        intended_s=asked.at_s,
        sent_s=client.sent_s,
        ended_s=client.ended_s,
        tokens_s=tuple(client.tokens_s),
        fate=client.fate or Fate.FAILED,
        why=client.why,
        digest=digest_of(client.tokens) if client.fate is Fate.COMPLETED else None,
        alone_s=lone.alone_s(len(asked.prompt), asked.output),
    )
