"""What grammars can do and cost: ``python -m chairlift.evaluation.grammars``.

Owns the questions: how many JSON schemas are offered, whether all that is written under their masks
fits them, how long a grammar takes to compile and a mask to be found, and what 16 streams lose by
them. Texts are drawn at random from what the masks allow, so they go where no model would.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import jsonschema
import numpy as np

from chairlift.cluster.errors import StartupError
from chairlift.cluster.grammar import grammar_fault, json_grammar
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation.flags import count
from chairlift.evaluation.grammar_load import GrammarCost, LoadSizes, measure_cost
from chairlift.evaluation.grammar_schemas import Schema, schemas
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.grammars import Grammars

__all__ = ["Found", "examine", "main"]

_TEXTS = 3
_TOKENS = 800
_CANDIDATES = 6
_END = 0.5


@dataclass
class Found:
    """What came of a set of schemas; times in microseconds.

    Attributes:
        refused: why → how many schemas.
        finished: texts that came to their end within the bound; ``broken`` are those of them that
            do not fit their schema.
    """

    schemas: int = 0
    offered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    texts: int = 0
    finished: int = 0
    broken: list[str] = field(default_factory=list)
    compile_us: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)


def examine(tried: Sequence[Schema], tokenizer: Tokenizer, grammars: Grammars, seed: int) -> Found:
    """Try every schema, and write texts under the masks of those that are offered."""
    found, draw = Found(schemas=len(tried)), random.Random(seed)
    writer = _Writer(tokenizer, grammars, draw, found.mask_us)
    for schema in tried:
        started = time.perf_counter()
        try:
            grammar = json_grammar(schema)
            if (fault := grammar_fault(grammar)) is not None:
                raise ValueError(fault)
            grammars.compiled(grammar).result()
        except ValueError as error:
            found.refused[str(error)[:60]] += 1
            continue
        found.compile_us.append((time.perf_counter() - started) * 1e6)
        found.offered += 1
        for _ in range(_TEXTS):
            found.texts += 1
            text = writer.write(grammar)
            if text is not None:
                found.finished += 1
                found.broken += _misfit(text, schema)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Ask and print; 0 when every finished text fits its schema, else 1."""
    arguments = _parser().parse_args(argv)
    try:
        path = resolve_model(arguments.model)
        spec, tokenizer = read_spec(path), Tokenizer.load(path)
        grammars = Grammars(tokenizer.vocabulary, spec.vocab_size, spec.eos_token_ids)
        tried = schemas(arguments.schemas, arguments.seed)
        found = examine(tried, tokenizer, grammars, arguments.seed)
        cost = None
        if arguments.rounds:
            sizes = LoadSizes(
                arguments.streams, arguments.steps, arguments.rounds, arguments.threads
            )
            cost = measure_cost(spec, grammars, sizes)
    except StartupError as error:
        print(f"grammars: {error}", file=sys.stderr)
        return 2
    print(_as_json(found, cost) if arguments.json else _sentences(found, cost, arguments.streams))
    return 1 if found.broken else 0


@dataclass(frozen=True, slots=True)
class _Writer:
    """Draws texts under masks."""

    tokenizer: Tokenizer
    grammars: Grammars
    draw: random.Random
    mask_us: list[float]

    def write(self, grammar: str) -> str | None:
        """A text that has come to its end; None for one that has not."""
        follower, text = self.grammars.follow(grammar), bytearray()
        for _ in range(_TOKENS):
            started = time.perf_counter()
            mask = follower.mask()
            self.mask_us.append((time.perf_counter() - started) * 1e6)
            token = self._choose(mask)
            if token is None:
                return None
            if token in self.grammars.ends:
                return text.decode()
            text += self.tokenizer.token_bytes(token)
            follower.take([token])
        return None

    def _choose(self, mask: bytes) -> int | None:
        """Any that is allowed; of a few the one that is likeliest to lead to an end."""
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        if not len(allowed):
            return None
        ends = [end for end in self.grammars.ends if end in allowed]
        if ends and self.draw.random() < _END:
            return ends[0]
        drawn = [int(self.draw.choice(allowed)) for _ in range(_CANDIDATES)]
        if self.draw.random() < _END:
            return drawn[0]
        return min(drawn, key=lambda token: _distance(self.tokenizer.token_bytes(token)))


def _distance(token: bytes) -> int:
    """What closes goes first, then what is short."""
    return len(token) - 100 * any(bracket in token for bracket in (b'"', b"}", b"]"))


def _misfit(text: str, schema: Schema) -> list[str]:
    """What is wrong with a text; nothing, as a rule."""
    try:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError) as error:
        return [f"{json.dumps(schema)[:200]}: {text[:200]}: {str(error).splitlines()[0]}"]
    return []


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Half, 99 % and the greatest."""
    ranked = sorted(values) or [0.0]
    return ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)], ranked[-1]


def _sentences(found: Found, cost: GrammarCost | None, streams: int) -> str:
    lines = [
        f"schemas   {found.offered} of {found.schemas} are offered",
        *(f"  {number} refused: {why}" for why, number in found.refused.most_common()),
        f"texts     {found.finished} of {found.texts} came to their end within {_TOKENS} tokens; "
        f"{len(found.broken)} do not fit their schema",
        *(f"  {each}" for each in found.broken[:10]),
        "compiling {:.1f} ms at the median, p99 {:.1f}, at most {:.1f}".format(
            *(value / 1e3 for value in _percentiles(found.compile_us))
        ),
        "masks     {:.0f} µs at the median, p99 {:.0f}, at most {:.0f}; mean {:.0f}".format(
            *_percentiles(found.mask_us), statistics.fmean(found.mask_us or [0.0])
        ),
    ]
    if cost is not None:
        lines.append(
            f"{streams} streams: a step takes {cost.without_ms:.2f} ms without grammars, "
            f"{cost.with_ms:.2f} ms with; they add {cost.added_ms:.2f} ms "
            f"({cost.added_low:.2f} to {cost.added_high:.2f}), {cost.per_token_us:.0f} µs a token"
        )
    return "\n".join(lines)


def _as_json(found: Found, cost: GrammarCost | None) -> str:
    fields = {
        "schemas": found.schemas,
        "offered": found.offered,
        "refused": dict(found.refused),
        "texts": found.texts,
        "finished": found.finished,
        "broken": found.broken,
        "compile_us": _percentiles(found.compile_us),
        "mask_us": _percentiles(found.mask_us),
        "cost": cost and asdict(cost),
    }
    return json.dumps(fields, indent=2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.grammars",
        description="Schemas, the texts written under their masks, and what masks cost.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="a model's name, file or folder")
    parser.add_argument("--schemas", type=count, default=300, help="how many are tried")
    parser.add_argument("--seed", type=int, default=1, help="of schemas and texts")
    parser.add_argument("--streams", type=count, default=16, help="that decode together")
    parser.add_argument("--steps", type=count, default=100, help="of one run with the model")
    parser.add_argument("--rounds", type=int, default=5, help="of four runs; 0: none")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=count, default=cores, help="of the CPU")
    parser.add_argument("--json", action="store_true", help="print figures only, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
