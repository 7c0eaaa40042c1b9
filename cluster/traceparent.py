"""The W3C ``traceparent``: by which a request's spans in several processes are one trace.

Owns its text form, ``version-trace-parent-flags`` in hexadecimal, and what is malformed; such a
one counts as none at all, so nobody's request fails for it. It knows nothing of spans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TraceParent", "read_traceparent"]

SAMPLED = 1
"""Bit of the flags: whoever sends it records the trace."""

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span under which others are to stand.

    Attributes:
        trace_id, span_id: 128 and 64 bits, neither of them 0.
        sampled: whether the trace is recorded.
    """

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def read_traceparent(text: str | None) -> TraceParent | None:
    """What the text says; None where there is none, or where it is malformed.

    A version that is not known yet may say more behind the flags, which is ignored.
    """
    match = _FORM.fullmatch(text or "")
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    trace_id, span_id = int(match["trace"], 16), int(match["span"], 16)
    if not (trace_id and span_id):
        return None
    return TraceParent(trace_id, span_id, bool(int(match["flags"], 16) & SAMPLED))
