"""Ways to damage a good input, and inputs that were never good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["any_json", "damaged", "nested", "noise", "numbers"]

MAX_CHANGES = 4
MAX_DEPTH = 20_000
HUGE = [2**exponent + offset for exponent in (7, 8, 15, 16, 31, 32, 63, 64) for offset in (-1, 0)]
"""Where a length, a count or a sign may turn over."""

noise = st.binary(max_size=256)

numbers = st.one_of(
    st.integers(-3, 130),
    st.integers(-(2**70), 2**70),
    st.floats(width=64),
    st.sampled_from([2**63, 2**64 - 1, -(2**63), 1e308, 5.0, -0.0]),
)


def any_json(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Values of any shape; objects have these names."""
    return st.recursive(
        st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)
        ),
        max_leaves=12,
    )


def nested(*pairs: tuple[bytes, bytes]) -> st.SearchStrategy[bytes]:
    """One bracket in another, up to where recursion ends, closed or not."""
    return st.builds(
        lambda pair, depth, closed: pair[0] * depth + pair[1] * (depth if closed else 0),
        st.sampled_from(pairs),
        st.one_of(st.integers(1, 300), st.sampled_from([1000, 5000, MAX_DEPTH])),
        st.booleans(),
    )


@st.composite
def damaged(
    draw: st.DrawFn,
    seeds: Sequence[bytes],
    words: Sequence[bytes] = (),
    *,
    within: int | None = None,
    least: int = 0,
) -> bytes:
    """A good input with some of its bytes changed, lost, repeated or put in.

    Args:
        draw: of Hypothesis.
        seeds: good inputs.
        words: what may stand in such inputs, to be put in elsewhere.
        within: damage only what lies before; for files of which the rest is payload.
        least: changes; 0 lets a good input through now and then.
    """
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(least, MAX_CHANGES))):
        end = len(data) if within is None else min(within, len(data))
        place = draw(st.integers(0, max(end - 1, 0)))
        _change(draw, data, place, words)
    return bytes(data)


def _change(draw: st.DrawFn, data: bytearray, place: int, words: Sequence[bytes]) -> None:
    kinds = [
        "set",
        "flip",
        "number",
        "lose",
        "repeat",
        "insert",
        "cut",
        *(["word"] if words else []),
    ]
    match draw(st.sampled_from(kinds)):
        case "set":
            data[place : place + 1] = bytes((draw(st.integers(0, 255)),))
        case "flip" if data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        case "number":
            width = draw(st.sampled_from([1, 2, 4, 8]))
            value = draw(st.sampled_from(HUGE)) % (1 << 8 * width)
            data[place : place + width] = value.to_bytes(width, "little")
        case "lose":
            del data[place : place + draw(st.integers(1, 64))]
        case "repeat":
            piece = bytes(data[place : place + draw(st.integers(1, 64))])
            data[place:place] = piece * draw(st.sampled_from([1, 2, 8, 100]))
        case "insert":
            data[place:place] = draw(st.binary(max_size=8))
        case "cut":
            del data[place:]
        case "word":
            data[place:place] = draw(st.sampled_from(words))
