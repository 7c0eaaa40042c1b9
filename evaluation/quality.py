"""What 8-bit arithmetic costs in quality: ``python -m chairlift.evaluation.quality``.

The same model computes in float32 and in int8: how likely it finds a fixed text (perplexity), how
often both find the same next token likeliest, and how long their own greedy continuations stay the
same. The text ships with the code and was written for this purpose, so no model has seen it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from statistics import fmean

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Batching, Request, SamplingParams
from chairlift.evaluation.exactness_run import Answer, Schedule, play
from chairlift.evaluation.flags import count
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.kernel_choice import MathChoice
from chairlift.workers.model_loading import Compute, make_runner
from chairlift.workers.sequence import Runner

__all__ = [
    "LIMIT",
    "Quality",
    "answers",
    "compare",
    "main",
    "model_perplexity",
    "perplexity",
    "requests_from",
    "text",
]

LIMIT = 0.01
"""Perplexity in int8 is at most so much above that in float32, as a share of it."""

_WINDOW = 256
_PROMPTS, _PROMPT, _OUTPUT = 12, 32, 32
_BLOCK_SIZE = 4
_NUM_BLOCKS = 320


@dataclass(frozen=True, slots=True)
class Quality:
    """The comparison.

    Attributes:
        tokens: of the text that were scored.
        change: of the perplexity, as a share of that in float32.
        same_likeliest: share of the scored tokens where both find the same one likeliest.
        same_output: mean share of a continuation before the first token that differs.
        same_answers: share of the continuations that are the same to their end.
    """

    tokens: int
    perplexity_float32: float
    perplexity_int8: float
    change: float
    same_likeliest: float
    same_output: float
    same_answers: float

    @property
    def good(self) -> bool:
        return self.change <= LIMIT


def text() -> str:
    """About 1,750 words on many subjects."""
    return Path(__file__).with_name("quality_text.txt").read_text(encoding="utf-8")


def requests_from(tokens: Sequence[int]) -> list[Request]:
    """Windows of the text to score, and beginnings from all over it to continue."""
    windows = [tokens[start : start + _WINDOW] for start in range(0, len(tokens) - 1, _WINDOW)]
    step = max(1, (len(tokens) - _PROMPT) // _PROMPTS)
    beginnings = [tokens[i * step : i * step + _PROMPT] for i in range(_PROMPTS)]
    return [
        *(_request(window, max_tokens=1, prompt_logprobs=1) for window in windows),
        *(_request(beginning, max_tokens=_OUTPUT) for beginning in beginnings),
    ]


def _request(prompt: Sequence[int], max_tokens: int, prompt_logprobs: int | None = None) -> Request:
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0,
        prompt_logprobs=prompt_logprobs,
        ignore_eos=True,
    )
    return Request(id="quality", prompt=tuple(prompt), sampling=sampling)


def answers(runner: Runner, requests: Sequence[Request], vocab_size: int) -> list[Answer]:
    """One for each request; the runner must have 320 blocks of 4."""
    schedule = Schedule(
        order=tuple(range(len(requests))),
        at_step=(0,) * len(requests),
        batching=Batching.CONTINUOUS,
        token_budget=512,
        seats=4,
        num_blocks=_NUM_BLOCKS,
        block_size=_BLOCK_SIZE,
        prefix_cache=False,
    )
    return [choices[0] for choices in play(requests, schedule, runner, vocab_size).answers]


def compare(float32: Sequence[Answer], int8: Sequence[Answer]) -> Quality:
    """The answers to the same requests."""
    scored = [
        (one, other)
        for a, b in zip(float32, int8, strict=True)
        for one, other in zip(a.prompt_logprobs, b.prompt_logprobs, strict=True)
    ]
    continued = [
        (a.tokens, b.tokens) for a, b in zip(float32, int8, strict=True) if not a.prompt_logprobs
    ]
    before, after = perplexity(float32), perplexity(int8)
    return Quality(
        tokens=len(scored),
        perplexity_float32=before,
        perplexity_int8=after,
        change=after / before - 1,
        same_likeliest=fmean(one.top[0][0] == other.top[0][0] for one, other in scored),
        same_output=fmean(_common(a, b) / len(a) for a, b in continued),
        same_answers=fmean(a == b for a, b in continued),
    )


def perplexity(told: Sequence[Answer]) -> float:
    """Of the text, from the answers to ``requests_from``."""
    return math.exp(-fmean(each.chosen for answer in told for each in answer.prompt_logprobs))


def model_perplexity(model: str, compute: Compute) -> float:
    """Of the text, by a model computed that way; takes some seconds.

    How requests are batched cannot change it where every request's tokens are the same, bit for
    bit, so it is a figure of the model and its arithmetic, not of one way to serve it.

    Raises:
        StartupError: the model or the kernels cannot be had.
    """
    path = resolve_model(model)
    windows = [each for each in requests_from(_tokens(path)) if each.sampling.prompt_logprobs]
    return perplexity(_answers_of(read_spec(path), windows, compute))


def _tokens(path: Path) -> Sequence[int]:
    return Tokenizer.load(path).encode(text(), add_special=False)


def _answers_of(spec: ModelSpec, requests: Sequence[Request], compute: Compute) -> list[Answer]:
    runner = make_runner(spec, compute, num_blocks=_NUM_BLOCKS, block_size=_BLOCK_SIZE)
    return answers(runner, requests, spec.vocab_size)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison as JSON; 0 when int8 is good enough, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=count, default=2)
    arguments = parser.parse_args(argv)

    def told(math: MathChoice) -> list[Answer]:
        return _answers_of(spec, requests, Compute("cpp", math, arguments.threads))

    try:
        path = resolve_model(arguments.model)
        spec = read_spec(path)
        requests = requests_from(_tokens(path))
        quality = compare(told("float32"), told("int8"))
    except StartupError as error:
        print(f"quality: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"model": spec.name, **asdict(quality), "limit": LIMIT}, indent=2))
    return 0 if quality.good else 1


if __name__ == "__main__":
    sys.exit(main())
