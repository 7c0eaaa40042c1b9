"""What a drill found: claims with the numbers that decide them, and figures beside them.

Owns the form of a report, on the screen and as JSON; measures nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

__all__ = ["Claim", "Report", "at_least", "at_most", "exactly"]

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "≤": operator.le,
    "≥": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """One promise: what was measured, and the bound that was fixed beforehand.

    A number that could not be measured is None, and what it should show does not hold.
    """

    text: str
    measured: float | None
    relation: str
    bound: float

    @property
    def holds(self) -> bool:
        return self.measured is not None and _RELATIONS[self.relation](self.measured, self.bound)


def exactly(text: str, measured: float | None, bound: float) -> Claim:
    return Claim(text, measured, "=", bound)


def at_most(text: str, measured: float | None, bound: float) -> Claim:
    return Claim(text, measured, "≤", bound)


def at_least(text: str, measured: float | None, bound: float) -> Claim:
    return Claim(text, measured, "≥", bound)


@dataclass(slots=True)
class Report:
    """What one drill found.

    Attributes:
        settings: what was asked of it.
        figures: what else is worth knowing, by name.
    """

    drill: str
    settings: Mapping[str, object]
    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    def text(self) -> str:
        """For a reader at a terminal."""
        lines = [f"drill {self.drill}", *_listed("settings", self.settings)]
        lines += [*_listed("figures", self.figures), "  claims"]
        for claim in self.claims:
            verdict = "holds" if claim.holds else "DOES NOT HOLD"
            measured = "not measured" if claim.measured is None else _short(claim.measured)
            bound = f"{claim.relation} {_short(claim.bound)}"
            lines.append(f"    {claim.text}: {measured} (wanted {bound})  {verdict}")
        return "\n".join(lines)

    def write(self, file: str) -> None:
        """As JSON."""
        claims = [
            {
                "claim": claim.text,
                "measured": claim.measured,
                "wanted": f"{claim.relation} {_short(claim.bound)}",
                "holds": claim.holds,
            }
            for claim in self.claims
        ]
        content = {
            "drill": self.drill,
            "holds": self.holds,
            "claims": claims,
            "figures": self.figures,
            "settings": dict(self.settings),
        }
        Path(file).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _listed(title: str, values: Mapping[str, object]) -> list[str]:
    return [f"  {title}", *(f"    {name}: {_short(value)}" for name, value in values.items())]


def _short(value: object) -> str:
    match value:
        case float():
            return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
        case dict():
            return ", ".join(f"{name} {_short(each)}" for name, each in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(_short, value)) or "none"
    return str(value)
