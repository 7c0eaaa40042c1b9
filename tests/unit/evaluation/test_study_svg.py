import pytest

from chairlift.evaluation.study_svg import Axis, Panel, line, picture, steps, thinned


def test_ticks_are_round_and_within_the_axis() -> None:
    assert Axis("", 0, 7.3).ticks() == [0, 2, 4, 6]
    assert Axis("", 0.02, 30, logarithmic=True).ticks() == pytest.approx([0.1, 1, 10])
    assert Axis("", 0.9, 6, logarithmic=True).ticks() == pytest.approx([1, 2, 5])


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("values", [[], [0.0], [3.0], [1e-9, 1e9]])
def test_any_values_make_an_axis(values: list[float], logarithmic: bool) -> None:
    axis = Axis.over("", values, logarithmic=logarithmic)
    assert axis.low < axis.high
    assert all(0 <= axis.share(value) <= 1 for value in [*values, 0.0, 1e12])
    assert len(axis.ticks()) <= 25


def test_a_distribution_ends_at_its_greatest_value_however_few_points() -> None:
    points = thinned(range(1, 1001), 11)
    assert len(points) == 11
    assert points[0] == (1, 0.001)
    assert points[-1] == (1000, 1.0)
    assert thinned([2.0, 1.0], 11) == [(1.0, 0.5), (2.0, 1.0)]


def test_a_value_holds_until_the_next() -> None:
    assert steps([(0, 1), (2, 3)]) == [(0, 1), (2, 1), (2, 3)]


def test_words_cannot_become_markup() -> None:
    panel = Panel(Axis("<b>", 0, 1), Axis("&", 0, 1))
    drawn = picture(panel, [line(panel, [(0, 0), (1, 1)], 9)], '"quoted"')
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
    assert 'class="line s1"' in drawn
