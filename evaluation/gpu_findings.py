"""What the report on a machine says: its sections, the aims and whether they are met.

Owns the shape of the report, as tables and as JSON, and the judgement of the aims; measures
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rich.table import Table

__all__ = ["AIMS", "Aim", "GpuReport", "Row", "Section", "Value"]

Value = str | int | float | bool | None
Row = Mapping[str, Value]
"""One line of a section: heading to value."""


@dataclass(slots=True)
class Section:
    """One part of the report, filled as it is measured.

    Attributes:
        rows: what was found.
        notes: what was left out, and why.
        fault: why the section came to an end before its time; None when it did not.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fault: str | None = None
    seconds: float = 0.0

    def add(self, *parts: Row) -> None:
        """One row, of parts that stand side by side."""
        self.rows.append({heading: value for part in parts for heading, value in part.items()})

    def table(self) -> Table:
        table = Table(title=f"{self.name} ({self.seconds:.0f} s)", title_justify="left")
        headings = list(dict.fromkeys(heading for row in self.rows for heading in row))
        for heading in headings:
            table.add_column(heading)
        for row in self.rows:
            table.add_row(*(_said(heading, row.get(heading)) for heading in headings))
        return table


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that should be reached.

    Attributes:
        text: in words.
        wanted: the least.
        section: the name of the section that has the figure.
        row: values of the rows that count.
        figure: the heading of the figure.
    """

    text: str
    wanted: float
    section: str
    row: Row
    figure: str

    def judge(self, sections: Iterable[Section]) -> Row:
        """The best of the rows; exact ones decide, for that is how a service computes."""
        reached = {
            kind: max(self._figures(sections, exact=kind == "exact"), default=None)
            for kind in ("exact", "free")
        }
        if all(best is None for best in reached.values()):
            verdict = "not measured"
        else:
            met = [kind for kind, best in reached.items() if (best or 0.0) >= self.wanted]
            verdict = "met" if "exact" in met else "met when free only" if met else "missed"
        return {"aim": self.text, "wanted": self.wanted, **reached, "verdict": verdict}

    def _figures(self, sections: Iterable[Section], *, exact: bool) -> Iterator[float]:
        wanted = {**self.row, "exact": exact}.items()
        for section in sections:
            if section.name == self.section:
                for row in section.rows:
                    value = row.get(self.figure)
                    if wanted <= row.items() and isinstance(value, float):
                        yield value


_BIG = "llama-3-8b"

AIMS = (
    Aim(
        "8B: decode at 1 sequence, share of memory roofline",
        0.70,
        f"decode {_BIG}",
        {"sequences": 1, "context": 512},
        "share of roofline",
    ),
    Aim(
        "8B: decode at 128 sequences, share of memory roofline",
        0.60,
        f"decode {_BIG}",
        {"sequences": 128, "context": 512},
        "share of roofline",
    ),
    Aim(
        "8B: prompt, share of the measured matrix rate",
        0.55,
        f"prompt {_BIG}",
        {},
        "share of matrix rate",
    ),
    Aim(
        "8B: output tokens/s at 128 requests, times the peer's",
        3.0,
        f"peer {_BIG}",
        {"requests": 128},
        "times the peer",
    ),
    Aim(
        "0.6B: output tokens/s at 128 requests, times the peer's",
        3.0,
        "peer qwen3-0.6b",
        {"requests": 128},
        "times the peer",
    ),
)


@dataclass(slots=True)
class GpuReport:
    """Everything that was found.

    Attributes:
        about: the machine, the versions, the flags.
        full: whether the models have the sizes that the aims are meant for.
    """

    about: Row
    full: bool
    sections: list[Section] = field(default_factory=list)

    @property
    def aims(self) -> list[Row]:
        return [aim.judge(self.sections if self.full else ()) for aim in AIMS]

    @property
    def sound(self) -> bool:
        """Whether nothing was found to be wrong; a missed aim is not."""
        return not any(section.fault for section in self.sections)

    def show(self, show_table: Callable[[Table], None], say: Callable[[str], None]) -> None:
        say("\n".join(f"{name}: {_said(name, value)}" for name, value in self.about.items()))
        for section in self.sections:
            if section.rows:
                show_table(section.table())
            for line in _remarks(section):
                say(f"  {section.name}: {line}")
        show_table(Section("aims", rows=self.aims).table())

    def json(self) -> dict[str, object]:
        return {
            "about": dict(self.about),
            "full": self.full,
            "aims": self.aims,
            "sections": [_plain(section) for section in self.sections],
        }


def _plain(section: Section) -> dict[str, object]:
    return {
        "name": section.name,
        "seconds": round(section.seconds, 1),
        "rows": section.rows,
        "notes": section.notes,
        "fault": section.fault,
    }


def _remarks(section: Section) -> Iterator[str]:
    yield from section.notes
    if section.fault is not None:
        yield f"FAULT: {section.fault}"


def _said(heading: str, value: Value) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0%}" if heading.startswith("share") else _number(value)
    return str(value)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
