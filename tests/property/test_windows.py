import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.sketch import ACCURACY
from chairlift.cluster.windows import SPANS, Fold
from support.reports import T0, Router, series, served, started, tenants

latencies = st.floats(1e-4, 1e4)


@given(st.tuples(*3 * [st.lists(latencies, min_size=1, max_size=60)]), st.floats(0, 1))
def test_quantiles_of_three_routers_are_within_a_percent_of_the_exact_ones(
    senders: tuple[list[float], ...], share: float
):
    fold = Fold()
    for number, values in enumerate(senders):
        router = Router(f"r{number}")
        for second in range(3):
            tally = served()
            for value in values[second::3]:
                tally.first_token.add(value)
            router.count(T0 + second, {series(): tally})
        fold.put(router.report(), T0 + 3)
    exact = sorted(value for values in senders for value in values)
    at = exact[math.floor(share * (len(exact) - 1))]
    for span_s in SPANS.values():
        (tally,) = fold.window(span_s, T0 + 5).bucket.values()
        assert tally.first_token.quantile(share) == pytest.approx(at, rel=ACCURACY * 1.0001)


@given(
    st.lists(
        st.tuples(st.sampled_from(["pass", "lose", "late", "again", "anew"]), st.integers(0, 3))
    ),
    st.integers(0, 120),
)
def test_whatever_becomes_of_reports_every_second_counts_once(
    fates: list[tuple[str, int]], history: int
):
    """A report may be lost, come late or twice, and the Hub may start anew at any time."""
    router, fold, known = Router("one"), Fold(), -1
    second = T0
    for second in range(T0, T0 + history):
        router.count(second, tenants(a=1))
    delayed = []
    for fate, idle in fates:
        second += 1 + idle
        router.count(second, tenants(a=1))
        report = router.report(known)
        if fate == "late":
            delayed.append(report)
        elif fate != "lose":
            fold = Fold() if fate == "anew" else fold
            known = fold.put(report, second)
            if fate == "again":
                known = fold.put(report, second)
            if delayed:
                fold.put(delayed.pop(), second)
    for _ in range(2):  # the first one may be refused
        known = fold.put(router.report(known), second)
    for span_s in (10, 60, 300, 3600):
        assert started(fold.window(span_s, second + 2).bucket) == started(
            router.windows.over(second + 1, span_s)
        )
    assert fold.totals() == router.totals
