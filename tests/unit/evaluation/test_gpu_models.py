"""Random models: what their steps read and multiply, counted by hand."""

from __future__ import annotations

import pytest
import torch

from chairlift.evaluation import gpu_models
from chairlift.evaluation.gpu_attention import _needs
from chairlift.evaluation.gpu_models import SHAPES, SMALL_SHAPES, Variant, make_model
from chairlift.evaluation.gpu_steps import _chunk

_CPU = torch.device("cpu")
_HIDDEN, _INNER, _LAYERS, _VOCAB = 64, 128, 2, 256
_HEADS, _KV_HEADS, _HEAD = 4, 2, 16
_LAYER = (
    2 * _HIDDEN * _HEADS * _HEAD + 2 * _HIDDEN * _KV_HEADS * _HEAD  # q, o; k, v
    + 3 * _HIDDEN * _INNER + 2 * _HIDDEN
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_models, "interprets", lambda: False)


def test_a_step_reads_the_weights_but_for_the_table_and_every_key_and_value_once() -> None:
    model = make_model("llama", SMALL_SHAPES["llama-3-8b"], _CPU)
    weights = _LAYERS * _LAYER + _HIDDEN + _VOCAB * _HIDDEN
    cache = 2 * _LAYERS * _KV_HEADS * _HEAD * (3 * 10)
    assert model.step_bytes(3, 10) == 4 * (weights + cache)


def test_a_tied_table_is_read_as_the_head() -> None:
    model = make_model("qwen", SMALL_SHAPES["qwen3-0.6b"], _CPU)
    assert model.parameters == sum(each.numel() for each in model.weights.values())


def test_a_chunk_multiplies_each_token_with_the_layers_and_one_with_the_head() -> None:
    model = make_model("llama", SMALL_SHAPES["llama-3-8b"], _CPU)
    seen = sum(range(6, 10))  # the tokens 5 … 8 see themselves and those before
    assert model.prompt_operations(5, 4) == (
        2 * 4 * (_LAYERS * _LAYER + _HIDDEN)
        + 2 * _VOCAB * _HIDDEN
        + 4 * seen * _HEADS * _HEAD * _LAYERS
    )
    assert _needs(model, [(9, 4)]) == (9 * 2 * _KV_HEADS * _HEAD * 4, 4 * seen * _HEADS * _HEAD)


def test_the_shapes_are_those_of_their_names() -> None:
    for name, size in (("llama-3-8b", 8.03e9), ("qwen3-0.6b", 0.596e9)):
        spec = gpu_models._spec_of(SHAPES[name])
        shapes = gpu_models.weight_shapes(spec).values()
        assert sum(torch.Size(shape).numel() for shape in shapes) == pytest.approx(size, rel=2e-3)


def test_weights_are_the_same_each_time_and_a_runner_leaves_them_there() -> None:
    one, other = (make_model("q", SMALL_SHAPES["qwen3-0.6b"], _CPU) for _ in range(2))
    assert all(map(torch.equal, one.weights.values(), other.weights.values()))
    found = [
        model.open_runner(Variant(exact=False, graphs=False), 8).logits(_chunk(0, 32))
        for model in (one, one, other)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
