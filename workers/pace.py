"""What steps took, and what they should have taken by the pace of long before.

Owns two sums, for whoever wants to know whether a replica has become slower. The ledger's own
prediction follows a change within seconds; this one stays behind for a thousand steps, so that the
change shows, and gives in at last, for what lasts is how things are. Pure: it reads no clock.
"""

from __future__ import annotations

from chairlift.workers.predictor import StepTime

__all__ = ["Pace"]

FORGETTING = 0.999


class Pace:
    """Of one engine.

    Attributes:
        taken_s, predicted_s: over the steps for which there was a prediction.
    """

    def __init__(self) -> None:
        self.taken_s = 0.0
        self.predicted_s = 0.0
        self._step_time = StepTime(FORGETTING)

    def observe(self, tokens: int, kv_read: int, seconds: float) -> None:
        """A step was taken, with so many tokens and KV positions read."""
        predicted = self._step_time.predict(tokens, kv_read)
        if predicted is not None:
            self.taken_s += seconds
            self.predicted_s += predicted
        self._step_time.observe(tokens, kv_read, seconds)
