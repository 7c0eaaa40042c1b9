import pytest

from chairlift.evaluation.metrics_page import MetricsPage

PAGE = MetricsPage(
    """
# TYPE runs_total counter
runs_total{replica="a",kind="x"} 2.0
runs_total{replica="a",kind="y"} 3.0
runs_total{replica="b",kind="x"} 5.0
# TYPE open gauge
open 7.0
"""
)


def test_a_total_is_over_all_labels():
    assert PAGE.total("runs_total") == 10.0
    assert PAGE.total("open") == 7.0


def test_a_metric_that_is_not_there_is_no_zero():
    with pytest.raises(LookupError, match="runs"):
        PAGE.total("runs")


def test_sums_by_label():
    assert PAGE.by_label("runs_total", "replica") == {"a": 5.0, "b": 5.0}
    assert PAGE.by_label("runs_total", "kind") == {"x": 7.0, "y": 3.0}
    assert PAGE.by_label("nothing", "kind") == {}
