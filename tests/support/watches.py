"""Guards for tests, and time that goes by for them."""

from collections.abc import Mapping

from chairlift.cluster.guard import Guard
from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.guard_state import Mode, Move, Reading, Rung, Signal
from chairlift.cluster.protocol import Controls

T0 = 1_700_000_000.0
SHIPPED = load_policy()

# Numbers for tests to count on, whatever those that ship come to be.
_SIGNALS = """
offered_load     1     1  no_speculation      refuse_best_effort  5    capacity
steps_left       64    1  smaller_steps       reserve             5    serving
saturated_steps  0.95  10 no_speculation      smaller_steps       20   capacity
slow_steps       1.5   5  smaller_steps       page                60   serving
queue_delay      0.25  2  refuse_best_effort  cut_admission       5    capacity
oldest_slope     0.5   5  refuse_best_effort  cut_admission       10   capacity
kv_use           0.95  5  smaller_steps       reserve             10   serving
recomputation    0.1   3  reserve             static              60   serving
unfairness       1     10 refuse_best_effort  page                120  fairness
burn_rate        1     1  demote_late         stop                60   serving
"""
_NAMES = ("threshold", "for_s", "rung", "climbs_to", "climb_after_s", "owner")


def _policy() -> GuardPolicy:
    rows = {name: each for name, *each in map(str.split, _SIGNALS.strip().splitlines())}
    signals = {name: dict(zip(_NAMES, row, strict=True)) for name, row in rows.items()}
    signals["contradiction"] = {"threshold": "0.5", "for_s": "10", "owner": "telemetry"}
    return GuardPolicy.model_validate(
        {
            "ladder": {
                "leave_share": 0.8,
                "leave_for_s": 60,
                "relapse_s": 300,
                "longest_leave_for_s": 960,
                "smaller_steps": {"token_budget": 0.5, "max_sequences": 0.875},
                "approval": ["roll_back", "stop"],
                "least_admit": 0.05,
                "aim": 0.9,
            },
            "limits": {"objective": 0.99, "slowdown_ratio": 4, "starvation_s": 30},
            "signals": {
                name: each | {"within_s": 30, "why": "of a test"} for name, each in signals.items()
            },
        }
    )


POLICY = _policy()
BASE = Controls(token_budget=512, max_sequences=32)


class Watch:
    """A Guard that looks once a second."""

    def __init__(
        self, mode: Mode = Mode.ACT, base: Controls = BASE, policy: GuardPolicy = POLICY
    ) -> None:
        self.guard = Guard(policy, base, mode)
        self.now = T0

    def see(self, values: Mapping[Signal, float], seconds: int = 1) -> list[Move]:
        """The same readings for so many seconds; what was done."""
        readings = {signal: Reading(value, "r1") for signal, value in values.items()}
        moves: list[Move] = []
        for _ in range(seconds):
            self.now += 1
            moves += self.guard.step(readings, self.now)
        return moves

    @property
    def rung(self) -> int:
        return self.guard.state.rung


def on(rung: Rung) -> Watch:
    """A Guard that a person has put on a rung and let go."""
    watch = Watch()
    watch.guard.set("ann", watch.now, rung, {})
    watch.guard.release("ann", watch.now)
    return watch


def beyond(signal: Signal, excess: float = 1.2, policy: GuardPolicy = POLICY) -> float:
    """A value that is beyond the signal's threshold by that factor; below it, if less than 1."""
    threshold = policy.signals[signal].threshold
    return threshold / excess if signal is Signal.STEPS_LEFT else threshold * excess
