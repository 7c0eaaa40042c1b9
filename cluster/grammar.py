"""What an output has to look like, as a text that travels with its request.

Owns how such texts are made and checked; what they mean is the library's, ``llguidance``: a JSON
schema in its wrapping, or rules in its dialect of Lark. Masks are made from them in
``workers.grammars``; nothing here knows tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from llguidance import LLMatcher, LLParserLimits

from chairlift.cluster.schema_width import MAX_WIDTH, width_fault

__all__ = ["LIMITS", "MAX_GRAMMAR_BYTES", "embedded", "grammar_fault", "json_grammar", "one_line"]

MAX_GRAMMAR_BYTES = 128 * 1024

LIMITS = LLParserLimits(
    # For each property that may be left out the parser keeps four items.
    max_items_in_row=5 * MAX_WIDTH,
    step_max_items=200 * MAX_WIDTH,
    verbose_errors=False,
)
"""The others are the library's own. For a mask that is some tens of milliseconds at most, a hundred
with the widest objects; for a grammar some hundreds."""

_JSON_OPTIONS: Mapping[str, Any] = {
    # A space, or a new line and its indentation: what models write, and it cannot go on for ever.
    "whitespace_pattern": r"[ ]?|\n[ \t]{0,24}",
    # What the library knows of a schema it keeps to; what it does not know it must not pass over.
    "coerce_one_of": False,
    "lenient": False,
}


def json_grammar(schema: Mapping[str, Any] | bool) -> str:
    """JSON that fits a schema. Raises ValueError for one that is nested too deeply, or too wide."""
    return LLMatcher.grammar_from_json_schema(embedded(schema))


def embedded(schema: Mapping[str, Any] | bool) -> str:
    """The schema as it stands behind ``%json`` among other rules; raises as ``json_grammar``."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if (fault := width_fault(schema)) is not None:
        raise ValueError(fault)
    try:
        return orjson.dumps({**schema, "x-guidance": _JSON_OPTIONS}).decode()
    except TypeError as error:  # how the library says that it would have to go too deep
        raise ValueError(f"is no schema: {error}") from None


def grammar_fault(grammar: str) -> str | None:
    """Why no output could follow the grammar, as far as can be told without a vocabulary."""
    if len(grammar) > MAX_GRAMMAR_BYTES:
        return f"has {len(grammar)} characters, of {MAX_GRAMMAR_BYTES} at most"
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return one_line(fault) if fault else None


def one_line(fault: str) -> str:
    """The library's words; where they span lines, the one that says what is wrong."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()] or ["cannot be used"]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines)[0].removeprefix("error: ")[:300]
