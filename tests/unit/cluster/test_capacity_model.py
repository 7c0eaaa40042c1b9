import json
import math
import random
from pathlib import Path
from statistics import mean, quantiles

import pytest

from chairlift.cluster.capacity_model import Lengths, Load, figures_of, given_figures
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.folder_spec import read_folder_spec
from support.tiny_llama import CONFIG


def test_lengths_have_the_mean_and_the_percentile_that_were_given():
    lengths = Lengths(100, 250)
    rng = random.Random(1)
    location = math.log(100) - lengths.sigma**2 / 2
    drawn = [rng.lognormvariate(location, lengths.sigma) for _ in range(40_000)]
    assert mean(drawn) == pytest.approx(100, rel=0.03)
    assert quantiles(drawn, n=20)[-1] == pytest.approx(250, rel=0.03)
    of_running = sum(each * each for each in drawn) / sum(drawn)
    assert lengths.of_running == pytest.approx(of_running, rel=0.05)


def test_equal_lengths_vary_by_nothing_and_endless_tails_are_bounded():
    assert Lengths(64, 64).of_running == 64
    assert Lengths(10, 10_000).sigma == pytest.approx(1.645)


def test_a_running_sequence_is_half_way_through_its_output():
    load = Load(1.0, Lengths(100, 100), Lengths(60, 60), shared=0.5)
    assert load.context == 130
    assert load.held == 80
    assert load.long_new_prompt == 50
    assert load.prompts_per_output == pytest.approx(50 / 60)


def test_heads_that_cannot_share_are_refused():
    with pytest.raises(ConfigError, match="--heads"):
        given_figures(1e9, "bfloat16", (10, 9, 2, 64), 2.0)


def of_folder(folder: Path, **changes: object):
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return read_folder_spec(folder)


def test_an_untied_embedding_is_looked_up_and_not_read(tmp_path: Path):
    spec = of_folder(tmp_path)
    untied = figures_of(spec, "bfloat16", None, 2.0)
    embedding = spec.vocab_size * spec.hidden_size
    assert untied.weight_bytes == 2 * untied.parameters
    assert untied.looked_up == untied.head == embedding
    assert untied.bytes_read(7) == 2 * (untied.parameters - embedding)
    assert untied.kv_bytes() == spec.kv_bytes_per_token(2)
    tied = figures_of(of_folder(tmp_path, tie_word_embeddings=True), "bfloat16", None, 2.0)
    assert tied.parameters == untied.parameters - embedding
    assert tied.bytes_read(1) == untied.bytes_read(1)
    assert tied.flops(3, 5) == untied.flops(3, 5)


def test_a_prompt_needs_the_head_for_its_last_token_alone(tmp_path: Path):
    model = figures_of(of_folder(tmp_path), "float32", None, 4.0)
    assert model.flops(1, 0) - model.flops(0, 1) == 2 * model.head


def test_a_token_takes_some_experts_and_many_tokens_read_them_all(tmp_path: Path):
    changes = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    spec = of_folder(tmp_path, **changes, num_local_experts=8, num_experts_per_tok=2)
    model = figures_of(spec, "bfloat16", None, 2.0)
    assert model.expert_share == 0.25
    dense = model.parameters - model.experts - model.looked_up
    assert model.bytes_read(1) == pytest.approx(2 * (dense + model.experts / 4))
    assert model.bytes_read(200) == pytest.approx(2 * (dense + model.experts))
    assert model.flops(1, 0) == pytest.approx(2 * (dense + model.experts / 4))
