"""The door between the threads that bring requests and the one thread that runs the engine.

Owns the decision to accept or refuse, which is made at once, and what has come in since the
engine last looked. Knows which handles are open, but nothing of seats, blocks or steps.

A cancellation is handed over together with the arrivals before it, so it finds its sequence even
if both come within one step. Everything is bounded by the number of sequences that may be open.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chairlift.cluster.protocol import Answer, Controls, Refusal, ReplicaInfo, Submission
from chairlift.workers.sequence import Sequence, SequenceKey

if TYPE_CHECKING:  # its library is not there where ledgers are only read
    from chairlift.workers.grammars import Grammars

__all__ = ["Drained", "Intake", "Source", "Watch"]


@dataclass(frozen=True, slots=True)
class Drained:
    """What came in since the last time; to be applied in this order.

    Attributes:
        controls: the newest, if any came.
        arrivals: new sequences in order of arrival.
        cancelled: keys to end, of sequences in ``arrivals`` as well.
        left: origins that are gone, so that nobody hears what becomes of their sequences, all of
            which are in ``cancelled``.
        hand_over: end everything that is open then; nothing will arrive any more.
        stop: the loop is over after this step.
    """

    controls: Controls | None = None
    arrivals: tuple[Sequence, ...] = ()
    cancelled: tuple[SequenceKey, ...] = ()
    left: frozenset[int] = frozenset()
    hand_over: bool = False
    stop: bool = False


_NOTHING = Drained()


class Source(Protocol):
    """What an engine's loop takes in from, and tells of ends.

    ``hand_over`` and ``stop`` may be called from any thread, all else is for the engine's.
    """

    def wait(self) -> None:
        """Sleep until something comes."""

    def drain(self) -> Drained:
        """Take everything that has come in."""

    def end(self, keys: Iterable[SequenceKey]) -> None:
        """Take note that sequences have ended."""

    def open_keys(self) -> list[SequenceKey]:
        """All that somebody still waits for."""

    def close(self) -> None:
        """Let nothing more in."""

    def hand_over(self) -> None:
        """Let nothing more in, and all that is open end as handed over."""

    def stop(self) -> None:
        """Let the loop end."""


class Watch(Protocol):
    """Looks on while sequences come and go; called in the engine's thread, must not block."""

    def came(self, sequence: Sequence, traceparent: str) -> None:
        """The engine has taken it in."""

    def ended(self, keys: Iterable[SequenceKey]) -> None:
        """Sequences have ended; what they came to is settled."""


class Intake:
    """The ``Source`` that routers fill. Methods may be called from any thread and do not block.

    ``drain``, ``wait``, ``end`` and ``open_keys`` are for the engine's thread.

    Attributes:
        grammars: those that sequences follow are to be compiled before they are submitted; None
            where none can be followed.
    """

    def __init__(
        self, info: ReplicaInfo, watch: Watch | None = None, grammars: Grammars | None = None
    ) -> None:
        self.grammars = grammars
        self._info = info
        self._watch = watch
        self._lock = threading.Lock()
        self._something_came = threading.Event()
        self._closed = False
        self._num_open = 0
        self._open: dict[int, set[int]] = {}
        self._arrivals: list[tuple[int, Submission]] = []
        self._cancelled: dict[SequenceKey, None] = {}
        self._left: set[int] = set()
        self._hand_over = False
        self._stop = False
        self._controls: Controls | None = None
        self._arrival = itertools.count()

    @property
    def num_open(self) -> int:
        """Sequences that were accepted and have not ended; counted just before it is told."""
        return self._num_open

    def submit(self, origin: int, submission: Submission) -> Answer:
        """Accept or refuse. ``origin`` is the stream; its number is not used for another one."""
        fault = _fault(submission, self._info, self.grammars is not None)
        if fault is not None:
            return Answer(submission.handle, *fault)
        n = submission.request.n
        handles = range(submission.handle, submission.handle + n)
        capacity = self._info.max_sequences + self._info.max_waiting
        with self._lock:
            if self._closed:
                return Answer(submission.handle, Refusal.DRAINING, "the replica is draining")
            if self._num_open + n > capacity:  # first: all that follows takes time per choice
                detail = f"{self._num_open} sequences are open, of {capacity} at most"
                return Answer(submission.handle, Refusal.QUEUE_FULL, detail)
            if not self._open.get(origin, set()).isdisjoint(handles):
                return Answer(submission.handle, Refusal.INVALID, "handle: is open already")
            self._num_open += n
            self._open.setdefault(origin, set()).update(handles)
            self._arrivals.append((origin, submission))
            self._something_came.set()
        return Answer(submission.handle)

    def cancel(self, origin: int, handles: Iterable[int]) -> None:
        """End these early; handles that are unknown or have ended are skipped."""
        with self._lock:
            self._cancel(origin, self._open.get(origin, set()).intersection(handles))

    def leave(self, origin: int) -> None:
        """A stream is gone: end all that it asked for, and tell nobody."""
        with self._lock:
            handles = self._open.pop(origin, None)
            if handles is not None:
                self._left.add(origin)
                self._cancel(origin, handles)

    def set_controls(self, controls: Controls) -> None:
        """Hand over newer Controls; a replica never gives away more seats than it has."""
        seats = min(controls.max_sequences, self._info.max_sequences)
        controls = dataclasses.replace(controls, max_sequences=seats)
        with self._lock:
            if self._controls is None or controls.version > self._controls.version:
                self._controls = controls
                self._something_came.set()

    def close(self) -> None:
        """Refuse every further submission; what is open goes on."""
        with self._lock:
            self._closed = True

    def hand_over(self) -> None:
        """Close, and let all that is open end as handed over."""
        with self._lock:
            self._closed = True
            self._hand_over = True
            self._something_came.set()

    def stop(self) -> None:
        """Let the loop end after the step that takes this in; what is open then fails."""
        with self._lock:
            self._stop = True
            self._something_came.set()

    def wait(self, timeout: float | None = None) -> None:
        """Sleep until something comes, or for ``timeout`` seconds at most."""
        self._something_came.wait(timeout)

    def drain(self) -> Drained:
        """Take everything that has come in."""
        with self._lock:
            if not self._something_came.is_set():
                return _NOTHING
            self._something_came.clear()
            arrivals, self._arrivals = self._arrivals, []
            cancelled, self._cancelled = tuple(self._cancelled), {}
            left, self._left = frozenset(self._left), set()
            controls, self._controls = self._controls, None
            hand_over, self._hand_over = self._hand_over, False
            stop = self._stop
        sequences = tuple(itertools.chain.from_iterable(itertools.starmap(self._build, arrivals)))
        return Drained(controls, sequences, cancelled, left, hand_over, stop)

    def end(self, keys: Iterable[SequenceKey]) -> None:
        """Take note that sequences have ended; each is reported once."""
        keys = tuple(keys)
        if self._watch is not None:
            self._watch.ended(keys)
        with self._lock:
            for key in keys:
                self._num_open -= 1
                self._cancelled.pop(key, None)  # too late, and the handle may come again
                handles = self._open.get(key.origin)
                if handles is not None:
                    handles.discard(key.handle)
                    if not handles:
                        del self._open[key.origin]

    def open_keys(self) -> list[SequenceKey]:
        """All that somebody still waits for."""
        with self._lock:
            return [SequenceKey(o, handle) for o, open_ in self._open.items() for handle in open_]

    def _cancel(self, origin: int, handles: Iterable[int]) -> None:
        for handle in sorted(handles):
            self._cancelled[SequenceKey(origin, handle)] = None
            self._something_came.set()

    def _build(self, origin: int, submission: Submission) -> Iterator[Sequence]:
        request = submission.request
        for choice in range(request.n):
            sequence = Sequence(
                key=SequenceKey(origin, submission.handle + choice),
                request_id=request.id,
                tenant=request.tenant,
                choice=submission.choice + choice,
                sampling=request.sampling,
                arrival=next(self._arrival),
                tokens=[*request.prompt, *submission.output],
                num_prompt=len(request.prompt),
                cache_salt=request.cache_salt,
                priority=request.priority,
                weight=request.weight,
            )
            if self._watch is not None:
                self._watch.came(sequence, request.traceparent)
            yield sequence


def _fault(submission: Submission, info: ReplicaInfo, grammars: bool) -> tuple[Refusal, str] | None:
    """Why this replica could never run the request."""
    request, output = submission.request, submission.output
    sampling = request.sampling
    named = {
        "prompt": request.prompt,
        "output": output,
        "stop_token_ids": sampling.stop_token_ids,
        "allowed_token_ids": sampling.allowed_token_ids,
        "logit_bias": [token for token, _ in sampling.logit_bias],
    }
    for name, tokens in named.items():
        if (highest := max(tokens, default=0)) >= info.vocab_size:
            detail = f"{name}: token {highest} is outside the vocabulary of {info.vocab_size}"
            return Refusal.INVALID, detail
    if sampling.grammar and (not grammars or sampling.allowed_token_ids or sampling.ignore_eos):
        detail = "alone says what may come and where it ends" if grammars else "cannot be followed"
        return Refusal.INVALID, f"grammar: {detail}"
    if output and request.n != 1:
        return Refusal.INVALID, f"output: only one choice can go on, not {request.n}"
    if len(output) >= sampling.max_tokens:
        detail = f"output: has {len(output)} tokens, so none of {sampling.max_tokens} is left"
        return Refusal.INVALID, detail
    total = len(request.prompt) + sampling.max_tokens
    if total > info.max_sequence_tokens:
        detail = f"prompt and max_tokens make {total} tokens of {info.max_sequence_tokens} at most"
        return Refusal.TOO_LONG, detail
    return None
