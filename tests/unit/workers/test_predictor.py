import random

import pytest

from chairlift.workers.predictor import Lengths, OutputLengths, StepTime


def work(pick: random.Random) -> tuple[int, int]:
    tokens = pick.choice([pick.randint(1, 32), pick.randint(1, 512)])
    return tokens, tokens + pick.randint(0, 20_000)


def truth(tokens: int, kv_read: int) -> float:
    return 0.004 + 0.0002 * tokens + 5e-7 * kv_read


def test_a_linear_step_time_is_learned() -> None:
    pick, fit = random.Random(1), StepTime()
    for _ in range(300):
        tokens, kv_read = work(pick)
        fit.observe(tokens, kv_read, truth(tokens, kv_read) * pick.uniform(0.97, 1.03))
    for _ in range(50):
        tokens, kv_read = work(pick)
        assert fit.predict(tokens, kv_read) == pytest.approx(truth(tokens, kv_read), rel=0.1)


def test_nothing_is_predicted_before_enough_is_known() -> None:
    fit = StepTime()
    for _ in range(StepTime.KNOWN_AFTER):
        assert fit.predict(1, 1) is None
        fit.observe(1, 1, 0.01)
    assert fit.predict(1, 1) == pytest.approx(0.01, rel=0.01)


def test_a_hiccup_leaves_the_fit_where_it_was() -> None:
    pick, fit = random.Random(2), StepTime()
    for _ in range(200):
        tokens, kv_read = work(pick)
        fit.observe(tokens, kv_read, truth(tokens, kv_read) * pick.uniform(0.98, 1.02))
    before = fit.predict(16, 4000)
    fit.observe(16, 4000, 10.0)
    after = fit.predict(16, 4000)
    assert before is not None and after == pytest.approx(before, rel=0.1)


def test_a_lasting_change_is_followed() -> None:
    pick, fit = random.Random(3), StepTime()
    for factor in (1.0, 3.0):
        for _ in range(300):
            tokens, kv_read = work(pick)
            fit.observe(tokens, kv_read, factor * truth(tokens, kv_read))
    assert fit.predict(16, 4000) == pytest.approx(3 * truth(16, 4000), rel=0.1)


def test_inputs_that_never_change_do_not_make_the_fit_unstable() -> None:
    """Forgetting without news blows the covariance up; then any new input jolts the fit."""
    pick, fit = random.Random(4), StepTime()
    for _ in range(100):
        tokens, kv_read = work(pick)
        fit.observe(tokens, kv_read, truth(tokens, kv_read))
    for _ in range(20_000):
        fit.observe(8, 1000, truth(8, 1000) * pick.uniform(0.95, 1.05))
    fit.observe(512, 512, truth(512, 512))
    predicted = fit.predict(8, 1000)
    assert predicted == pytest.approx(truth(8, 1000), rel=0.2)


def test_a_prediction_is_never_negative() -> None:
    pick, fit = random.Random(5), StepTime()
    for _ in range(500):
        fit.observe(pick.randint(1, 500), pick.randint(1, 50_000), pick.uniform(0.0, 0.001))
        predicted = fit.predict(pick.randint(0, 10_000), pick.randint(0, 10**6))
        assert predicted is None or predicted >= 0.0


def test_quantiles_of_the_remaining_output_depend_on_what_is_there() -> None:
    """Half end after 10 tokens, the others after 1000: who passed 10 is bound for 1000."""
    lengths = Lengths()
    for _ in range(50):
        lengths.add(10)
        lengths.add(1000)
    p50, p90 = lengths.remaining(0) or (0, 0)
    assert p50 == 10 and p90 == pytest.approx(1000, rel=0.1)
    p50, p90 = lengths.remaining(100) or (0, 0)
    assert p50 == pytest.approx(900, rel=0.1) and p90 == pytest.approx(900, rel=0.1)


def test_beyond_every_length_that_was_seen_nothing_is_known() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.add(10)
    assert lengths.remaining(10) is None


def test_buckets_cover_every_length_within_a_tenth() -> None:
    lengths = Lengths()
    for length in [*range(0, 3000), 2**20]:
        highest = lengths._highest(lengths._bucket(length))
        assert length <= highest <= max(length, 1.1 * length)


def test_a_tenant_of_its_own_length_is_told_from_the_others() -> None:
    outputs = OutputLengths()
    for _ in range(20):
        outputs.add("short", 4)
        outputs.add("long", 400)
    assert outputs.remaining("short", 0, 1000) == (4, 4)
    p50, _ = outputs.remaining("long", 0, 1000) or (0, 0)
    assert p50 == pytest.approx(400, rel=0.1)
    assert outputs.remaining("long", 0, 50) == (50, 50)


def test_an_unknown_tenant_is_taken_for_everybody() -> None:
    outputs = OutputLengths()
    assert outputs.remaining("new", 0, 100) is None
    for _ in range(20):
        outputs.add("short", 4)
    assert outputs.remaining("new", 0, 100) == (4, 4)


def test_many_tenants_cost_bounded_memory_and_do_not_drive_out_a_frequent_one() -> None:
    outputs = OutputLengths(max_tenants=8)
    for number in range(2000):
        outputs.add("frequent", 7)
        outputs.add(f"tenant-{number}", 300)
    assert outputs.num_tenants == 8
    assert outputs.remaining("frequent", 0, 1000) == (7, 7)


def test_while_all_only_decode_the_prediction_stays_close() -> None:
    """Tokens are constant and KV grows with every step: inputs that say little of each other."""
    pick, fit = random.Random(6), StepTime()
    kv_read = 0
    for step in range(600):
        tokens = 128 if step in {0, 1, 24} else 16
        kv_read = tokens if step in {0, 24} else kv_read + 16
        seconds = (0.14 + 0.0026 * tokens + 3e-6 * kv_read) * pick.uniform(0.95, 1.05)
        predicted = fit.predict(tokens, kv_read)
        assert predicted is None or predicted == pytest.approx(seconds, rel=0.35)
        if step > 50:
            assert predicted == pytest.approx(seconds, rel=0.15)
        fit.observe(tokens, kv_read, seconds)
