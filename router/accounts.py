"""What each tenant has used: charged when it is served, given back when it is not.

Owns the order in which the books are kept: virtual counters (who is next), token buckets
and open requests (who is over a limit), and the times of starts (how long a newcomer waits). It
decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.cluster.fairness import VirtualCounters, service
from chairlift.cluster.protocol import Delta
from chairlift.router.admission import Admission
from chairlift.router.ticket import Ticket
from chairlift.router.waits import FirstToken, StartRate

__all__ = ["Accounts"]


@dataclass(frozen=True, slots=True)
class Accounts:
    """One router's books."""

    counters: VirtualCounters
    admission: Admission
    starts: StartRate
    first_token: FirstToken

    def sent(self, ticket: Ticket, now: float, *, waiting: bool) -> None:
        """It goes to a replica; ``waiting``: others stay behind."""
        self.starts.started(now, ticket.n, waiting=waiting)
        if not ticket.under_way:
            self.counters.chosen(ticket.tenant, ticket.priority)
            ticket.paid = len(ticket.request.prompt)
            self._charge(ticket, input_tokens=ticket.paid)

    def expired(self, ticket: Ticket, now: float) -> None:
        """No token of it came before its deadline."""
        self._learn(ticket, now)

    def refund(self, ticket: Ticket) -> None:
        """Nothing of it was computed."""
        self._charge(ticket, input_tokens=-ticket.paid)
        ticket.paid = 0

    def served(self, ticket: Ticket, choice: int, delta: Delta, at: float) -> None:
        """Tokens of a choice came; prompt tokens that were cached cost nothing.

        The other choices find in the cache what the first one has computed.
        """
        if delta.cached_tokens and choice == ticket.choice:
            cached = min(delta.cached_tokens, ticket.paid)
            ticket.paid -= cached
            self._charge(ticket, input_tokens=-cached)
        if delta.tokens:
            if ticket.prediction is not None:
                self._learn(ticket, at)
            tenant, number = ticket.tenant, len(delta.tokens)
            self._charge(ticket, output_tokens=number)
            self.admission.generated(tenant, number, at)

    def _charge(self, ticket: Ticket, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        self.counters.charge(ticket.tenant, input_tokens, output_tokens)
        ticket.flight.record.charged(service(input_tokens, output_tokens))

    def _learn(self, ticket: Ticket, now: float) -> None:
        prediction, ticket.prediction = ticket.prediction, None
        if prediction is not None:
            self.first_token.learn(prediction, now - ticket.queued_at)
