from collections import Counter
from collections.abc import Mapping

from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.cluster.tenants import Tenant
from chairlift.router.admission import Admission, AdmissionLimits, Backlog
from chairlift.router.shared_use import SETTLE_S, SharedUse

T = Tenant("t", prompt_tokens_per_minute=6000, output_tokens_per_minute=6000, max_requests=5)
EMPTY = Backlog(0, 0, 0, None, lambda: 1.0)


class RouterSide:
    """One router's books, fed by hand; ``taken`` is what others' use was counted as."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counters = VirtualCounters()
        self.admission = Admission(AdmissionLimits(10, 10, 10**6))
        self.queued: Counter[str] = Counter()
        self.share = SharedUse(self.counters, self.admission, self)
        self.admission.check(T, Request("r", (1,), SamplingParams(1)), 1.0, EMPTY, 0.0)

    def queued_of(self, tenant: str) -> int:
        return self.queued[tenant]

    def serve(self, prompt_tokens: int, output_tokens: int, now: float = 0.0) -> None:
        self.admission.started(T, prompt_tokens, now)
        self.admission.generated("t", output_tokens, now)
        self.counters.charge("t", prompt_tokens, output_tokens)
        self.admission.ended("t")

    def meet(self, exchange: Exchange, now: float) -> None:
        self.share.apply(exchange.put(self.name, self.share.uses(now), now), now)

    def left(self, now: float) -> float:
        """Prompt tokens that the tenant may still have here."""
        bucket = self.admission._accounts["t"].prompt
        bucket.take(0, now)
        return bucket.level


def settled(exchange: Exchange, *sides: RouterSide) -> float:
    """Let them meet until differences count; returns the time."""
    for now in (0.0, SETTLE_S, SETTLE_S + 1):
        for side in sides:
            side.meet(exchange, now)
    return SETTLE_S + 1


def heard(share: SharedUse, now: float, **uses: TenantUse) -> None:
    share.apply(uses, now)


def test_what_it_tells_is_what_its_books_say():
    side = RouterSide("a")
    side.counters.arrive("t", 1.0, 0, waits=True)
    side.serve(30, 4)
    side.admission.started(T, 10, 0.0)
    side.queued["t"] = 3
    assert side.share.uses(0.0) == {
        "t": TenantUse(
            service=38, prompt_tokens=40, output_tokens=4, lift=0, open_requests=1, queued=3
        )
    }


def test_routers_agree_on_what_each_tenant_has_had():
    exchange, sides = Exchange(), [RouterSide(name) for name in "abc"]
    for number, side in enumerate(sides):
        side.serve(100 * (number + 1), 0)
    settled(exchange, *sides)
    assert [side.counters.value("t") for side in sides] == [600.0] * 3
    sides[0].serve(50, 25)
    for side in sides * 2:
        side.meet(exchange, SETTLE_S + 2)
    assert [side.counters.value("t") for side in sides] == [700.0] * 3


def test_a_refund_elsewhere_is_taken_over():
    exchange, a, b = Exchange(), RouterSide("a"), RouterSide("b")
    a.serve(100, 0)
    now = settled(exchange, a, b)
    a.counters.charge("t", -40)
    a.meet(exchange, now)
    b.meet(exchange, now)
    assert b.counters.value("t") == 60


def test_limits_hold_for_all_routers_together():
    exchange, a, b = Exchange(), RouterSide("a"), RouterSide("b")
    now = settled(exchange, a, b)
    a.serve(5000, 0, now)
    a.meet(exchange, now)
    b.meet(exchange, now)
    assert b.left(now) == 1000
    b.meet(exchange, now)
    assert b.left(now) == 1000


def test_a_router_that_has_just_started_is_not_charged_for_all_that_ever_was():
    exchange, old = Exchange(), RouterSide("old")
    old.serve(100_000, 0)
    now = settled(exchange, old)
    new = RouterSide("new")
    new.meet(exchange, now)
    assert new.left(now) == 6000
    assert new.counters.value("t") == 100_000


def test_a_hub_that_was_restarted_takes_nothing_and_gives_nothing_twice():
    """Guards against routers that pay again for all that was told to the new Hub anew."""
    exchange, a, b, gone = Exchange(), *(RouterSide(name) for name in ("a", "b", "gone"))
    for side in (a, b, gone):
        side.serve(10_000, 0)
    now = settled(exchange, a, b, gone)
    before = a.left(now)
    exchange = Exchange()
    for later in (0.0, 1.0, 2.0):
        a.meet(exchange, now + later)
        assert a.counters.value("t") == 30_000
        b.meet(exchange, now + later)
    now += SETTLE_S + 2
    a.meet(exchange, now)
    assert a.left(now) >= before
    assert a.counters.value("t") == 30_000
    b.serve(500, 0, now)
    b.meet(exchange, now)
    level = a.left(now)
    a.meet(exchange, now)
    assert a.counters.value("t") == 30_500
    assert a.left(now) == level - 500


def test_without_a_hub_the_shares_stay_as_known_and_nothing_counts_as_open_for_ever():
    side = RouterSide("a")
    heard(side.share, 0.0, t=TenantUse(service=70, open_requests=5))
    assert side.admission._accounts["t"].open_elsewhere == 5
    side.share.uses(SETTLE_S)
    assert side.admission._accounts["t"].open_elsewhere == 5
    side.share.uses(SETTLE_S + 1)
    assert side.admission._accounts["t"].open_elsewhere == 0
    assert side.counters.value("t") == 70


def test_a_tenant_that_nobody_speaks_of_any_more_has_nothing_open():
    side = RouterSide("a")
    told: Mapping[str, TenantUse] = {"t": TenantUse(open_requests=5)}
    side.share.apply(told, 0.0)
    side.share.apply({}, 1.0)
    assert side.admission._accounts["t"].open_elsewhere == 0


def test_lifts_are_shared():
    exchange, a, b = Exchange(), RouterSide("a"), RouterSide("b")
    a.counters.charge("other", 100)
    a.counters.chosen("other", 0)
    a.counters.arrive("t", 1.0, 0, waits=False)
    settled(exchange, a, b)
    assert b.counters.value("t") == b.counters.lift("t") == 100
