"""The peer: transformers' own continuous batching on the same device, weights and requests.

Owns how both are run over the same requests. All requests are there at once, prompts differ in
length, outputs do not (the peer takes one length for all), tokens are the likeliest, and no token
ends a text. Both run a few tokens of all of it first, unmeasured. Time counts from when the first
request is taken up to the last token, so what the peer does before that (its memory, its graphs)
is left out.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.engine_run import EngineSizes, Work, run_engine
from chairlift.evaluation.gpu_clock import Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_models import BLOCK_SIZE, RandomModel, Variant
from chairlift.evaluation.gpu_steps import release

__all__ = ["Requests", "beside_peer"]

_TOKEN_BUDGET = 4096
_WARM_UP_OUTPUT = 8


@dataclass(frozen=True, slots=True)
class Requests:
    """How many, the range of their prompts' lengths, and the output of each."""

    count: int
    prompt: tuple[int, int]
    output: int

    def prompts(self, vocab_size: int) -> list[tuple[int, ...]]:
        dice = random.Random(0)
        return [
            tuple(dice.randrange(3, vocab_size) for _ in range(dice.randint(*self.prompt)))
            for _ in range(self.count)
        ]


def beside_peer(
    model: RandomModel,
    variants: Sequence[Variant],
    requests: Requests,
    deadline: Deadline,
    peer_settings: Mapping[str, Any],
) -> Section:
    """Output tokens per second of both, and their ratio.

    Args:
        model: whose weights both get.
        variants: ways to compute with ours; the peer comes after the first.
        requests: the load.
        deadline: what would start behind it is left out.
        peer_settings: of its ``ContinuousBatchingConfig``, where its own choice does not do.
    """
    section = Section(f"peer {model.name}")
    prompts = requests.prompts(model.spec.vocab_size)
    first, *others = variants
    ours = [(first, _ours(model, first, prompts, requests.output))]
    release(model.device)
    peer = None
    if deadline.left > 0:
        peer = _peer_or_note(model, prompts, requests.output, peer_settings, section)
        release(model.device)
    else:
        section.notes.append("the peer: left out, the time was up")
    for variant in others:
        if deadline.left <= 0:
            section.notes.append(f"{variant}: left out, the time was up")
            continue
        ours.append((variant, _ours(model, variant, prompts, requests.output)))
        release(model.device)
    for variant, rate in ours:
        section.add(
            {"exact": variant.exact, "graphs": variant.graphs},
            {"requests": requests.count, "output": requests.output},
            {"output tokens/s": rate, "peer's": peer},
            {"times the peer": None if peer is None else rate / peer},
        )
    return section


def _ours(
    model: RandomModel, variant: Variant, prompts: Sequence[tuple[int, ...]], output: int
) -> float:
    work = [Work(0.0, prompt, output) for prompt in prompts]
    needed = sum(-(-(len(one.prompt) + output) // BLOCK_SIZE) for one in work)
    blocks = model.blocks_that_fit(needed)
    runner = model.open_runner(variant, blocks)
    sizes = EngineSizes(
        seats=len(work),
        token_budget=_TOKEN_BUDGET,
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        vocab_size=model.spec.vocab_size,
    )
    first = [replace(one, output=min(output, _WARM_UP_OUTPUT)) for one in work]
    run_engine(first, Batching.CONTINUOUS, runner, sizes)
    return run_engine(work, Batching.CONTINUOUS, runner, sizes).output_tokens_per_s


def _peer_or_note(
    model: RandomModel,
    prompts: Sequence[tuple[int, ...]],
    output: int,
    settings: Mapping[str, Any],
    section: Section,
) -> float | None:
    try:
        return _peer(model, prompts, output, settings)
    except Exception as error:  # Whatever it is, our own figures are still worth printing.
        said = (str(error).splitlines() or [""])[0]
        section.notes.append(f"the peer did not run: {type(error).__name__}: {said}")
        return None


def _peer(
    model: RandomModel,
    prompts: Sequence[tuple[int, ...]],
    output: int,
    settings: Mapping[str, Any],
) -> float:
    # Here, for most of the report does without; and its functions have no types.
    transformers: Any = importlib.import_module("transformers")
    peer = _build(model, transformers)
    inputs = [list(prompt) for prompt in prompts]
    with warnings.catch_warnings(action="ignore"):
        for length in (min(output, _WARM_UP_OUTPUT), output):
            answers = peer.generate_batch(
                inputs,
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=length, do_sample=False, eos_token_id=-1, pad_token_id=0
                ),
                continuous_batching_config=transformers.ContinuousBatchingConfig(**settings),
                progress_bar=False,
            ).values()
    lengths = [len(answer.generated_tokens) for answer in answers]
    if lengths != [output] * len(prompts):
        raise RuntimeError(f"{len(prompts)} answers of {output} tokens were due, not {lengths}")
    start = min(answer.lifespan[0] for answer in answers)
    return sum(lengths) / float(max(answer.lifespan[1] for answer in answers) - start)


def _build(model: RandomModel, transformers: Any) -> Any:
    """The peer's model around the very same tensors."""
    settings = dict(model.config)
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device(model.device):
        peer = transformers.AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    weights = dict(model.weights)
    if model.spec.tied_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    peer.load_state_dict(weights, assign=True)
    return peer.eval()
