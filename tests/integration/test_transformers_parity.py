"""The embedded model's greedy text, token for token, against transformers in float32."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.evaluation.parity_prompts import prompts
from chairlift.router.tokenizer import Tokenizer
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan
from chairlift.workers.weights import load_weights
from support.decoding import Decoder, make_sequence
from support.llama_models import transformers_model

OUTPUT = 64
TIE = 1e-4
BLOCK_SIZE, BLOCKS = 16, 700
SHAPE_KEYS = (
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
)

try:
    MODEL = resolve_model("smollm2")
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)


PROMPTS = prompts()


@dataclass(frozen=True)
class Loaded:
    runner: ModelRunner
    reference: torch.nn.Module


@pytest.fixture(scope="module")
def loaded():
    spec = read_spec(MODEL)
    weights = load_weights(spec, lambda _: None)
    reference = transformers_model(spec, weights)
    runner = ModelRunner(spec, weights, num_blocks=BLOCKS, block_size=BLOCK_SIZE)
    return Loaded(runner, reference)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(PROMPTS)[::4], id="a quarter of the prompts"),
        pytest.param(tuple(PROMPTS), id="all prompts", marks=pytest.mark.slow),
    ],
)
def test_greedy_continuations(loaded, names, capsys):
    tokenizer = Tokenizer.load(MODEL)
    sequences = {
        name: make_sequence(
            index, tokenizer.encode(text, add_special=False)[:3000], max_tokens=OUTPUT
        )
        for index, (name, text) in enumerate((name, PROMPTS[name]) for name in names)
    }
    if "3,000 tokens" in sequences:
        assert sequences["3,000 tokens"].num_prompt == 3000
    # The runner batches all of them, in steps of 512 tokens, over blocks in descending order.
    Decoder(loaded.runner, range(BLOCKS), BLOCK_SIZE).run(list(sequences.values()))

    ties, differences = [], []
    for name, sequence in sequences.items():
        output = torch.tensor(sequence.tokens[sequence.num_prompt :])
        assert len(output) == OUTPUT
        logits = continuation_logits(loaded.reference, sequence.tokens)
        best, chosen = logits.max(-1)
        gaps = best - logits.gather(1, output[:, None])[:, 0]
        for at in (chosen != output).nonzero()[:, 0].tolist():
            line = (
                f"{name}, output {at}: token {output[at]} here, {chosen[at]} in transformers, "
                f"whose logits differ by {gaps[at]:.1e}"
            )
            (ties if gaps[at] <= TIE else differences).append(line)
    if ties:
        with capsys.disabled():
            print("\nties, which count as equal:", *ties, sep="\n  ")
    assert not differences, "\n".join(differences)


def test_log_probabilities_of_a_prompt_and_of_what_follows(loaded):
    prompt = Tokenizer.load(MODEL).encode(PROMPTS["a question"], add_special=False)
    sequence = make_sequence(0, prompt, prompt_logprobs=5, logprobs=5)
    sequence.blocks = list(range(BLOCKS // 2))
    result = loaded.runner.advance(StepPlan((Slice(sequence, 0, len(prompt), True),)))
    with torch.inference_mode():
        logits = loaded.reference(torch.tensor([prompt]), use_cache=False).logits[0]
    expected = torch.log_softmax(logits.double(), -1)
    ours = [*result.prompt_logprobs[0], result.logprobs[0]]
    following = [*prompt[1:], result.tokens[0]]
    for row, token, logprobs in zip(expected, following, ours, strict=True):
        assert logprobs.chosen == pytest.approx(row[token].item(), abs=1e-4)
        values = [value for _, value in logprobs.top]
        assert values == pytest.approx(row.topk(5).values.tolist(), abs=1e-4)
        assert values == pytest.approx(row[[id_ for id_, _ in logprobs.top]].tolist(), abs=1e-4)


@pytest.mark.slow
def test_weights_and_shape_are_those_that_transformers_reads_from_the_same_file(loaded):
    theirs = load_gguf_checkpoint(MODEL, return_tensors=True, model_to_load=loaded.reference)
    ours = dict(loaded.reference.state_dict())
    assert torch.equal(ours["model.embed_tokens.weight"], ours.pop("lm_head.weight"))
    assert theirs["tensors"].keys() == ours.keys()
    for name, tensor in theirs["tensors"].items():
        assert torch.equal(tensor, ours[name]), name
    config = loaded.reference.config.to_dict()
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    for key in SHAPE_KEYS:
        assert theirs["config"][key] == pytest.approx(config[key]), key


def continuation_logits(model, tokens):
    """What each of the last tokens was chosen from: (OUTPUT, vocabulary)."""
    with torch.inference_mode():
        out = model(torch.tensor([tokens[:-1]]), use_cache=False, logits_to_keep=OUTPUT)
    return out.logits[0]
