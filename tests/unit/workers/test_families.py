"""Every model family against transformers: files that it wrote, logits that it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from chairlift.cluster.model_files import read_spec, weight_shapes
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.kernel_choice import KernelChoice
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan
from chairlift.workers.shards import share_of
from chairlift.workers.tensor_parallel import Group
from chairlift.workers.weights import load_weights
from support.cpp_kernels import make_kernels
from support.decoding import make_sequence
from support.shared_ranks import by_ranks
from support.tiny_gguf import write_family_gguf
from support.tiny_models import TINY_MODELS, VOCAB

PROMPT = 40
BLOCK_SIZE = 8
WHOLE = (PROMPT,)
CHUNKED = (7, 1, 1, 14, 6, 11)
TOKENS: list[int] = torch.randint(
    VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(1)
).tolist()


@dataclass(frozen=True)
class Saved:
    """A model as a folder, and the logits (PROMPT, vocabulary) that transformers makes of it."""

    folder: Path
    logits: torch.Tensor


@pytest.fixture(scope="module", params=TINY_MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("family")
    model = TINY_MODELS[request.param].save(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0]
    return Saved(folder, logits)


@pytest.mark.parametrize("kernels", ["cpp", "torch"])
@pytest.mark.parametrize("chunks", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_logits_are_those_of_transformers(
    saved: Saved, chunks: tuple[int, ...], kernels: KernelChoice
) -> None:
    if kernels == "cpp":
        make_kernels()  # skips where they cannot be had
    actual = logits_of(read_spec(saved.folder), TOKENS, chunks, kernels)
    ends = torch.tensor(chunks).cumsum(0) - 1
    assert saved.logits.std() > 0.5
    torch.testing.assert_close(actual, saved.logits[ends], rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [2, 6], ids=["a KV head a rank", "KV heads shared"])
def test_ranks_have_the_logits_of_transformers(saved: Saved, size: int) -> None:
    make_kernels()
    spec = read_spec(saved.folder)

    def compute(group: Group) -> list[torch.Tensor]:
        return [logits_of(spec, TOKENS, chunks, "cpp", group) for chunks in (CHUNKED, WHOLE)]

    (first, whole), *others = by_ranks(size, compute)
    assert torch.equal(whole[-1], first[-1])
    ends = torch.tensor(CHUNKED).cumsum(0) - 1
    torch.testing.assert_close(first, saved.logits[ends], rtol=0, atol=1e-4)
    assert all(torch.equal(chunked, first) for chunked, _ in others)


def test_a_cut_sequence_has_the_same_bits(saved: Saved) -> None:
    make_kernels()
    spec = read_spec(saved.folder)
    whole, cut = (logits_of(spec, TOKENS, chunks, "cpp") for chunks in (WHOLE, CHUNKED))
    assert torch.equal(whole[-1], cut[-1])


def test_files_hold_what_the_description_says(saved: Saved) -> None:
    spec = read_spec(saved.folder)
    weights = load_weights(spec, progress=lambda share: None)
    assert {name: tuple(each.shape) for name, each in weights.items()} == weight_shapes(spec)


# GGUF: the scale of Gemma's queries is not in the file, and then follows from the heads.

IN_GGUF = {
    "qwen 2": TINY_MODELS["qwen 2"],
    "qwen 3": TINY_MODELS["qwen 3"],
    "gemma 2": TINY_MODELS["gemma 2"].but(query_pre_attn_scalar=16),
    "gemma 3": TINY_MODELS["gemma 3"].but(query_pre_attn_scalar=16),
}


@pytest.mark.parametrize("name", IN_GGUF)
def test_gguf_files_give_the_same_logits(tmp_path: Path, name: str) -> None:
    model = IN_GGUF[name].build()
    file = write_family_gguf(tmp_path / "m.gguf", model, pattern=3 if name == "gemma 3" else None)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0, -1:]
    actual = logits_of(read_spec(file), TOKENS, WHOLE, "torch")
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def logits_of(
    spec: ModelSpec,
    tokens: list[int],
    chunks: tuple[int, ...],
    kernels: KernelChoice,
    group: Group | None = None,
) -> torch.Tensor:
    """(chunks, vocabulary): the logits of each chunk's last token, on any rank."""
    blocks = -(-len(tokens) // BLOCK_SIZE)
    share = share_of(spec, group.rank, group.size) if group else None
    runner = ModelRunner(
        spec,
        load_weights(spec, lambda progress: None, share=share),
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        kernels=kernels,
        group=group,
    )
    sequence = make_sequence(0, tokens)
    sequence.blocks = list(range(blocks))[::-1]
    logits = []
    for count in chunks:
        plan = StepPlan((Slice(sequence, sequence.num_computed, count, True),))
        logits.append(runner.logits(plan))
        sequence.num_computed += count
    return torch.cat(logits)
