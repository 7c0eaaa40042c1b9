"""What a machine came to: kernels, engine and service side by side, and what each layer costs.

Owns the ratios and the tables; measures nothing. Medians are over the rounds, and a ratio is taken
within a round, where engine and service had the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from chairlift.evaluation.kernels import Figure
from chairlift.evaluation.machine_ceilings import Ceilings
from chairlift.evaluation.peers_report import Figures

__all__ = ["EngineFigures", "MachineReport", "Turn"]

_ROWS_OF = {"a": 16, "b": 1, "c": 32}
"""Of a step in which every seat of the load decodes."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One load in a bare engine.

    Attributes:
        kernel_tokens_per_s: by the kernels of a step in which all seats decode at a context of 128
            tokens, one step right after the other.
        decode_tokens_per_s: by the median step in which all seats decode and nothing else is done.
        first_token_p50: seconds, since the request's turn came.
    """

    kernel_tokens_per_s: float
    output_tokens_per_s: float
    decode_tokens_per_s: float | None
    first_token_p50: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One load on both, in one round."""

    kind: str
    load: str
    engine: EngineFigures
    service: Figures


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Everything that was measured."""

    about: Mapping[str, object]
    ceilings: Ceilings
    kernels: tuple[Figure, ...]
    turns: tuple[Turn, ...]

    def tables(self) -> Iterator[Table]:
        yield self._ceiling_table()
        yield self._kernel_table()
        for kind in dict.fromkeys(turn.kind for turn in self.turns):
            yield self._load_table(kind)

    def _ceiling_table(self) -> Table:
        said = ", ".join(f"{name} {value}" for name, value in self.about.items())
        table = Table("the machine", title=said, title_justify="left")
        table.add_column("", justify="right")
        table.add_row("memory read, GB/s", f"{self.ceilings.read_gb_per_s:.1f}")
        table.add_row("memory copied (read + written), GB/s", f"{self.ceilings.copy_gb_per_s:.1f}")
        table.add_row("torch float32 product, GFLOP/s", f"{self.ceilings.float32_gflops:.0f}")
        table.add_row("torch int8 product, GOP/s", f"{self.ceilings.int8_gops:.0f}")
        return table

    def _kernel_table(self) -> Table:
        table = Table("linear layers alone", "rows", title_justify="left")
        for heading in ("tokens/s", "GOP/s", "of torch's product", "of memory read"):
            table.add_column(heading, justify="right")
        products = {"int8": self.ceilings.int8_gops, "float32": self.ceilings.float32_gflops}
        for each in self.kernels:
            if each.shape == "all":
                share = f"{each.gflops / products[each.kernels]:.0%}"
                read = each.gb_per_s / self.ceilings.read_gb_per_s
                memory = f"{read:.0%}" if each.rows == 1 else ""
                rate = f"{_tokens_per_s(each):.0f}"
                table.add_row(
                    each.kernels, str(each.rows), rate, f"{each.gflops:.0f}", share, memory
                )
        return table

    def _load_table(self, kind: str) -> Table:
        table = Table("", title=f"{kind}: output tokens/s", title_justify="left")
        mine = [turn for turn in self.turns if turn.kind == kind]
        cells: list[list[str]] = []
        for load in dict.fromkeys(turn.load for turn in mine):
            table.add_column(f"load {load}", justify="right")
            turns = [turn for turn in mine if turn.load == load]
            cells.append(self._column(turns, self._linear_limit(kind, load)))
        for heading, *row in zip(_HEADINGS, *cells, strict=True):
            table.add_row(heading, *row)
        return table

    def _column(self, turns: Sequence[Turn], limit: float) -> list[str]:
        kernels = _over(turns, lambda turn: turn.engine.kernel_tokens_per_s) or 0.0
        decoded = _over(turns, lambda turn: turn.engine.decode_tokens_per_s)
        added = _over(turns, _added_first_token)
        return [
            f"{limit:.0f}",
            f"{kernels:.0f}",
            _number(decoded),
            "–" if decoded is None else f"{decoded / kernels:.0%}",
            _number(_over(turns, lambda turn: turn.engine.output_tokens_per_s)),
            _number(_over(turns, lambda turn: turn.service.output_tokens_per_s)),
            f"{_over(turns, _kept) or 0.0:.0%}",
            "–" if added is None else f"{1e3 * added:.1f}",
            str(sum(sum(turn.service.failures.values()) for turn in turns)),
        ]

    def _linear_limit(self, kind: str, load: str) -> float:
        rows = _ROWS_OF[load]
        return next(
            _tokens_per_s(each)
            for each in self.kernels
            if (each.kernels, each.shape, each.rows) == (kind, "all", rows)
        )


_HEADINGS = (
    "linear layers alone",
    "all kernels of a step alone",
    "engine, while all decode",
    "  of the kernels alone",
    "engine, whole load",
    "service, whole load",
    "  of the engine",
    "service's first token p50 later by, ms",
    "failed requests",
)


def _tokens_per_s(figure: Figure) -> float:
    return figure.rows / figure.ms * 1e3


def _kept(turn: Turn) -> float:
    return turn.service.output_tokens_per_s / turn.engine.output_tokens_per_s


def _added_first_token(turn: Turn) -> float | None:
    served = turn.service.first_token_p50
    return None if served is None else served - turn.engine.first_token_p50


def _over(turns: Sequence[Turn], value: Callable[[Turn], float | None]) -> float | None:
    """The median of the rounds, without those that have no value."""
    known = [each for each in map(value, turns) if each is not None]
    return median(known) if known else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
