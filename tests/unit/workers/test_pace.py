from chairlift.workers.pace import Pace


def ratio(pace: Pace, before: tuple[float, float]) -> float:
    return (pace.taken_s - before[0]) / (pace.predicted_s - before[1])


def run(pace: Pace, steps: int, seconds: float) -> float:
    before = pace.taken_s, pace.predicted_s
    for step in range(steps):
        tokens = 8 + step % 5
        pace.observe(tokens, 100 * tokens, seconds * (1 + tokens / 100))
    return ratio(pace, before)


def test_says_nothing_before_it_knows_something():
    pace = Pace()
    pace.observe(1, 1, 0.1)
    assert pace.taken_s == pace.predicted_s == 0.0


def test_takes_what_is_usual_for_granted():
    pace = Pace()
    run(pace, 300, 0.01)
    assert 0.98 < run(pace, 200, 0.01) < 1.02


def test_shows_for_hundreds_of_steps_that_they_have_become_slow():
    pace = Pace()
    run(pace, 500, 0.01)
    assert run(pace, 100, 0.03) > 2
    assert run(pace, 200, 0.03) > 1.5


def test_gives_in_to_what_lasts():
    pace = Pace()
    run(pace, 500, 0.01)
    run(pace, 10_000, 0.03)
    assert run(pace, 100, 0.03) < 1.1


def test_shows_what_is_slow_again_after_it_was_well():
    pace = Pace()
    run(pace, 500, 0.01)
    run(pace, 100, 0.03)
    assert run(pace, 500, 0.01) < 1.0
