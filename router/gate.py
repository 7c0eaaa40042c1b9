"""Whether the Guard lets a newcomer in: by its class, its tenant's share, and its wait.

Owns the newest state of the Guard that this router obeys, and how much of its share each tenant has
had. What was let in is not its business any more, wherever that goes. Pure: times are passed in.

Of each tenant's requests, in the order in which they come, exactly the share is let in, so that all
are cut in proportion. What is owed to a tenant grows with each request by the share, and one that
is let in takes a whole (error diffusion):

    share 0.4:   request   1    2    3    4    5    6    7
                 owed      1   .4   .8  1.2   .6   1.0  .4
                          in         -   in    -   in    -
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from chairlift.cluster.errors import Overloaded
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Controls, Request

__all__ = ["Gate"]

WHOLE = 1_000_000
"""Shares are counted in millionths, for whole numbers add up without an error."""

PAUSE_S = 30.0
"""After so long without a request, a tenant's next one is let in; so one that sends little is."""

RETRY_S = 60.0
"""When it makes sense to ask again what the Guard's rung forbids altogether."""


IN_TIME = 0.5
"""Part of the target within which a first token must be expected: there has to be a queue for seats
to stay full, but no longer one. With 0.8, what is expected too early made a tenth late, which is
burn enough for the next rungs."""


@dataclass(slots=True)
class _Account:
    owed: int
    seen_at: float


class Gate:
    """One router's; an account for each tenant that came lately, while shares are cut.

    Attributes:
        guard: the newest state; None while there was none.
    """

    def __init__(self) -> None:
        self.guard: GuardState | None = None
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    @property
    def controls(self) -> Controls:
        """In force here; without a state, those that forbid nothing."""
        return Controls() if self.guard is None else self.guard.controls

    def obey(self, state: GuardState) -> bool:
        """Put a newer state in force; False if it is none."""
        if state.version <= (0 if self.guard is None else self.guard.version):
            return False
        self.guard = state
        if state.controls.admit >= 1.0:
            self._accounts.clear()
        return True

    def check(self, request: Request, now: float) -> None:
        """Let a newcomer in, or say why not; either way it counts as one of its tenant's.

        Raises:
            Overloaded: the service lets nobody in any more (``service_stopping``), nobody of this
                class (``best_effort_refused``), or not all of the tenant's (``admission_cut``).
        """
        controls = self.controls
        if controls.admit <= 0.0:
            raise Overloaded(
                "the service lets nothing in any more, for it is about to stop",
                code="service_stopping",
                retry_after_s=RETRY_S,
            )
        if request.priority > controls.lowest:
            raise Overloaded(
                f"{request.priority.name.lower()} requests are refused while the service is "
                "overloaded; try again later, or in a higher class",
                code="best_effort_refused",
                retry_after_s=RETRY_S,
            )
        if controls.admit < 1.0 and not self._lets_in(request.tenant, controls.admit, now):
            raise Overloaded(
                f"of each tenant's requests {controls.admit:.0%} are let in while the service is "
                "overloaded; try again later",
                code="admission_cut",
                # So many tries bring one in; who heeds it comes less often the deeper the cut.
                retry_after_s=min(1.0 / controls.admit, RETRY_S),
            )

    def check_wait(self, predicted_s: float | None, target_s: float) -> None:
        """Turn away who would be late, while shares are cut.

        A share is of what comes, and who is refused may come again at once, however often: clients
        that heed no ``Retry-After`` would fill the queue through any share. What can be served in
        time is no more for that.

        Args:
            predicted_s: until its first token; None where nobody can tell.
            target_s: for first tokens.

        Raises:
            Overloaded: it would come too late (``admission_cut``).
        """
        most_s = IN_TIME * target_s
        if self.controls.admit >= 1.0 or predicted_s is None or predicted_s <= most_s:
            return
        raise Overloaded(
            f"the first token would come in about {predicted_s:.1f} s; while the service is "
            f"overloaded, only what can have it within {most_s:g} s is let in; try again later",
            code="admission_cut",
            retry_after_s=min(max(1.0, predicted_s - most_s), RETRY_S),
        )

    def _lets_in(self, tenant: str, share: float, now: float) -> bool:
        """Whether the tenant's next one is of its share."""
        while self._accounts:
            seen_longest_ago = next(iter(self._accounts))
            if now - self._accounts[seen_longest_ago].seen_at < PAUSE_S:
                break
            del self._accounts[seen_longest_ago]
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(WHOLE, now)
        else:
            account.owed += max(1, round(share * WHOLE))
            account.seen_at = now
            self._accounts.move_to_end(tenant)
        if account.owed < WHOLE:
            return False
        account.owed -= WHOLE
        return True
