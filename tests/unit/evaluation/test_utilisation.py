from dataclasses import replace
from itertools import starmap

from chairlift.evaluation.utilisation import Point, Setting, knee, measure, table

CALM = Point(Setting(4, 64), 0.5, 100, 100, 90.0, 1.0, 0.2, 0.04, 1.0, 0.0, 0.0, None, "", None)


def points(*in_time: float) -> list[Point]:
    return list(starmap(lambda n, each: replace(CALM, load=n, in_time=each), enumerate(in_time)))


def test_the_knee_is_where_more_load_first_serves_fewer_in_time():
    assert knee(points(1.0, 2.0, 3.0)) is None
    found = knee(reversed(points(1.0, 2.0, 1.9, 3.0)))
    assert found is not None
    assert (found.load, found.in_time) == (2, 1.9)


def test_far_too_much_is_late_and_the_guard_would_have_moved_while_little_is_calm():
    setting = Setting(4, 64)
    little, much = measure(setting, 0.3, 3.0, 1), measure(setting, 2.0, 3.0, 1)
    assert little.moved_at_s is None and little.late_at_s is None
    assert little.first_token_p99_s < 2.0 < much.first_token_p99_s
    assert much.moved_at_s is not None and much.late > 0.5
    assert much.in_time < little.in_time


def test_the_table_has_a_line_for_each_point():
    lines = table([CALM, replace(CALM, moved_at_s=12.0, raised_by="queue_delay")]).splitlines()
    assert len(lines) == 4
    assert lines[2].endswith("| – | – |  |")
    assert lines[3].endswith("| – | 12 s | `queue_delay` |")
