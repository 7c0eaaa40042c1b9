"""One model computed by several ranks against one: ``python -m chairlift.evaluation.rank_parity``.

Greedy continuations of twenty prompts, the logits of a long prompt, and the time of a decode step,
by a single process and by a tensor-parallel group of processes on this machine, which have as many
threads between them. Sums across ranks have an order of their own, so last bits differ; where that
turns a greedy choice, the two tokens must have been as good as equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import median

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Batching, Request, SamplingParams
from chairlift.evaluation.exactness_run import Answer, Schedule, play
from chairlift.evaluation.flags import count
from chairlift.evaluation.parity_prompts import prompts
from chairlift.evaluation.rank_processes import on_ranks
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.model_loading import AnyRunner, Compute, make_runner
from chairlift.workers.shards import check_degree
from chairlift.workers.tensor_parallel import Group

__all__ = ["TIE", "Measured", "Parity", "compare", "main", "measure"]

TIE = 1e-4
"""Log probabilities that are no further apart count as equal."""

_OUTPUT = 64
_LONGEST = 3000
_BLOCK_SIZE, _NUM_BLOCKS = 16, 700
_TIMED = ((1, 256), (8, 256), (32, 256))
_REPEATS = 9


@dataclass(frozen=True, slots=True)
class Measured:
    """What one way of computing came to.

    Attributes:
        answers: greedy, one for each request.
        step_ms: median time of a step in which so many sequences decode.
    """

    answers: list[Answer]
    step_ms: dict[int, float]


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison.

    Attributes:
        largest_difference: of two log probabilities of the same token of a prompt or continuation.
        equal: continuations that are the same to their end.
        ties: where the first differing token was as likely as the other: what, and by how much.
        differences: where it was not.
        speed: of a decode step at so many sequences, ranks over a single process.
    """

    continuations: int
    largest_difference: float
    equal: int
    ties: tuple[str, ...]
    differences: tuple[str, ...]
    speed: Mapping[int, float]

    @property
    def good(self) -> bool:
        return not self.differences and self.largest_difference <= TIE


def requests_from(tokenizer: Tokenizer) -> dict[str, Request]:
    """Greedy, with the log probabilities of all tokens."""
    sampling = SamplingParams(
        max_tokens=_OUTPUT, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=0
    )
    return {
        name: Request(
            id=name,
            prompt=tuple(tokenizer.encode(text, add_special=False)[:_LONGEST]),
            sampling=sampling,
        )
        for name, text in prompts().items()
    }


def measure(
    group: Group, spec: ModelSpec, compute: Compute, requests: Sequence[Request]
) -> Measured:
    """By this group, of which each rank does it."""
    runner = make_runner(spec, compute, num_blocks=_NUM_BLOCKS, block_size=_BLOCK_SIZE, group=group)
    schedule = Schedule(
        order=tuple(range(len(requests))),
        at_step=(0,) * len(requests),
        batching=Batching.CONTINUOUS,
        token_budget=512,
        seats=len(requests),
        num_blocks=_NUM_BLOCKS,
        block_size=_BLOCK_SIZE,
        prefix_cache=False,
    )
    answers = [each[0] for each in play(requests, schedule, runner, spec.vocab_size).answers]
    return Measured(answers, {n: _step_ms(runner, n, context) for n, context in _TIMED})


def _step_ms(runner: AnyRunner, sequences: int, context: int) -> float:
    step = runner.rehearse(sequences, context)
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begun))
    return median(times)


def compare(names: Sequence[str], one: Measured, ranks: Measured) -> Parity:
    """Of the same requests, named in their order."""
    largest, equal = 0.0, 0
    ties: list[str] = []
    differences: list[str] = []
    for name, alone, shared in zip(names, one.answers, ranks.answers, strict=True):
        same = len(
            list(
                takewhile(
                    lambda pair: pair[0] == pair[1], zip(alone.tokens, shared.tokens, strict=False)
                )
            )
        )
        pairs = [
            *zip(alone.prompt_logprobs, shared.prompt_logprobs, strict=True),
            *zip(alone.logprobs[:same], shared.logprobs[:same], strict=True),
        ]
        largest = max(largest, *(abs(a.chosen - b.chosen) for a, b in pairs))
        if same == len(alone.tokens):
            equal += 1
            continue
        (_, first), (_, second) = alone.logprobs[same].top
        gap = first - second
        line = f"{name}, output {same}: {alone.tokens[same]} alone, {shared.tokens[same]} by ranks"
        (ties if gap <= TIE else differences).append(f"{line}, {gap:.1e} apart")
    speed = {n: one.step_ms[n] / ranks.step_ms[n] for n in one.step_ms}
    return Parity(len(names), largest, equal, tuple(ties), tuple(differences), speed)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison as JSON; 0 when it is good."""
    parser = argparse.ArgumentParser(
        prog="rank_parity", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--threads", type=count, default=2, help="of all ranks together")
    parser.add_argument("--math", choices=("float32", "int8"), default="float32")
    arguments = parser.parse_args(argv)
    try:
        path = resolve_model(arguments.model)
        spec = read_spec(path)
        check_degree(spec, arguments.ranks)
        requests = requests_from(Tokenizer.load(path))
        one, ranks = (
            on_ranks(
                size,
                measure,
                spec,
                Compute("cpp", arguments.math, max(1, arguments.threads // size)),
                list(requests.values()),
            )
            for size in (1, arguments.ranks)
        )
    except StartupError as error:
        print(f"rank_parity: {error}", file=sys.stderr)
        return 2
    parity = compare(list(requests), one, ranks)
    times = {"alone_step_ms": one.step_ms, "ranks_step_ms": ranks.step_ms}
    settings = {"model": spec.name, "ranks": arguments.ranks, "math": arguments.math}
    print(json.dumps({**settings, **asdict(parity), **times, "limit": TIE}, indent=2))
    return 0 if parity.good else 1


if __name__ == "__main__":
    sys.exit(main())
