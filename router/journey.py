"""What one request's trace tells of its time in a router.

Owns the names and attributes of the router's spans: ``chat`` or ``text_completion`` for the whole
request, by the OpenTelemetry conventions for generative AI, and below it

    admission    ├─┤                              checks at the door
    queue          ├────────┤                     until a replica had room
    placement               ├─┤                   until that replica has accepted or refused it

once for each time that something of it was sent, with events for what befell it. They are noted as
they happen and made into spans at the request's end, so they delay nobody's first token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from chairlift.cluster.traceparent import read_traceparent
from chairlift.cluster.tracing import Attributes, AttributeValue, OpenSpan, Tracer
from chairlift.router.ask import Ask
from chairlift.router.metrics import Move, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from chairlift.cluster.protocol import Answer
    from chairlift.router.flight import Flight
    from chairlift.router.ticket import Leg, Ticket

__all__ = ["Journey", "start_journey"]

MAX_NOTES = 256
"""Of one request; where it goes from replica to replica for ever, the rest is not told."""


def start_journey(tracer: Tracer, model: str, ask: Ask, at: float) -> tuple[Ask, Journey | None]:
    """Begin a request's trace at ``at``, or its part in the client's.

    Returns the same ask, to be served as a part of the trace, and None where that is not recorded.
    """
    operation = "text_completion" if ask.continues else "chat"
    span = tracer.begin(operation, read_traceparent(ask.request.traceparent), at)
    request = replace(ask.request, traceparent=str(span.traceparent))
    ask = replace(ask, request=request)
    if not span.traceparent.sampled:
        return ask, None
    sampling = request.sampling
    about: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "chairlift",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.choice.count": request.n,
        "chairlift.request.id": request.id,
        "chairlift.tenant": request.tenant,
        "chairlift.priority": request.priority.name.lower(),
    }
    return ask, Journey(span, about)


@dataclass(slots=True)
class Journey:
    """One request's notes.

    Times are of the router's clock.
    """

    _span: OpenSpan
    _about: Attributes
    _notes: list[Callable[[], None]] = field(default_factory=list)
    _under_way: dict[int, tuple[float, dict[str, AttributeValue]]] = field(default_factory=dict)
    """Handle of what was sent and is not answered → when, and what is known of the replica."""

    def admitted(self, ticket: Ticket, at: float) -> None:
        prediction = ticket.prediction
        about = {} if prediction is None else {"chairlift.predicted_s": prediction.seconds}
        self._note(self._span.child, "admission", ticket.queued_at, at, about)

    def sent(self, leg: Leg, at: float, cached_blocks: int, *, others: int) -> None:
        """It has left the queue for a replica; to be told before the replica is.

        Args:
            leg: what is sent.
            at: seconds.
            cached_blocks: of its prompt, as far as the router knows.
            others: replicas that are ready as well.
        """
        ticket, view = leg.ticket, leg.stream.view()
        about: dict[str, AttributeValue] = {
            "chairlift.choice": ticket.choice,
            "chairlift.under_way": ticket.under_way,
        }
        self._note(self._span.child, "queue", ticket.queued_at, at, about)
        self._under_way[leg.handle] = (
            at,
            {
                "chairlift.choice": ticket.choice,
                "chairlift.replica": view.replica_id,
                "chairlift.replica.free_seats": view.free_seats,
                "chairlift.replica.backlog_tokens": view.backlog,
                "chairlift.replica.cached_blocks": cached_blocks,
                "chairlift.other_replicas": others,
            },
        )

    def answered(self, leg: Leg, answer: Answer, at: float) -> None:
        sent_at, about = self._under_way.pop(leg.handle)
        about["chairlift.answer"] = "accepted"
        if answer.refusal is not None:
            about["chairlift.answer"] = answer.refusal.name.lower()
        self._note(self._span.child, "placement", sent_at, at, about)

    def lost(self, leg: Leg, reason: str, at: float) -> None:
        """A replica is gone, or could not compute it."""
        self._under_way.pop(leg.handle, None)
        about = {"chairlift.replica": leg.stream.replica_id, "chairlift.reason": reason}
        self._note(self._span.event, "replica lost", at, about)

    def moved(self, why: Move, choice: int, at: float) -> None:
        """A choice goes on at another replica."""
        about = {"chairlift.reason": why.value, "chairlift.choice": choice}
        self._note(self._span.event, "move", at, about)

    def end(self, flight: Flight, outcome: Outcome, label: str, at: float) -> None:
        """``label``: how it ended, or the error's code."""
        if flight.first_token_at is not None:
            self._span.event("first token", flight.first_token_at, {})
        for note in self._notes:
            note()
        failed = outcome in (Outcome.FAILED, Outcome.REJECTED)
        about: dict[str, AttributeValue] = {
            **self._about,
            "gen_ai.usage.input_tokens": flight.prompt_tokens,
            "gen_ai.usage.output_tokens": flight.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": flight.cached_tokens,
            "chairlift.outcome": outcome.value,
        }
        if outcome is Outcome.FINISHED:
            about["gen_ai.response.finish_reasons"] = [each.finish or "" for each in flight.choices]
        self._span.end(at, about, error=label if failed else None)

    def _note(self, make: Callable[..., None], name: str, *rest: float | Attributes) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(partial(make, name, *rest))
