"""Log lines that strangers cause."""

import logging

import pytest

from chairlift.cluster.seldom import MAX_SUBJECTS, PERIOD_S, Seldom


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_line_a_subject_and_period_and_a_count_of_the_rest(caplog) -> None:
    clock = Clock()
    seldom = Seldom(logging.getLogger("test"), clock)
    for _ in range(1000):
        seldom.warn("a", "a was refused")
    seldom.warn("b", "b was refused")
    clock.now = PERIOD_S
    seldom.warn("a", "a was refused")
    assert [record.getMessage() for record in caplog.records] == [
        "a was refused",
        "b was refused",
        "a was refused (999 more since the last time)",
    ]


def test_subjects_do_not_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"), Clock())
    for number in range(10 * MAX_SUBJECTS):
        seldom.warn(str(number), "refused")
    assert len(seldom._said) <= MAX_SUBJECTS
