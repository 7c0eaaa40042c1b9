import pytest

from chairlift.cluster.traceparent import TraceParent, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_what_is_written_is_read() -> None:
    parent = TraceParent(int(TRACE, 16), int(SPAN, 16), sampled=True)
    assert str(parent) == f"00-{TRACE}-{SPAN}-01"
    assert read_traceparent(str(parent)) == parent


def test_leading_zeros_are_kept() -> None:
    assert str(TraceParent(1, 2, sampled=False)) == f"00-{1:032x}-{2:016x}-00"


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True)])
def test_only_the_lowest_flag_says_sampled(flags: str, sampled: bool) -> None:
    parent = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert parent is not None
    assert parent.sampled is sampled


@pytest.mark.parametrize("more", ["", "-what-comes-later"])
def test_a_version_to_come_may_say_more(more: str) -> None:
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-01{more}") is not None


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_malformed_counts_as_none(text: str | None) -> None:
    assert read_traceparent(text) is None
