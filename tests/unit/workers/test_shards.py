"""Which rank has what of a model."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ExpertsSpec, ModelSpec
from chairlift.workers.shards import check_degree, cut_of, degrees, share_of, share_spec
from support.llama_models import tiny_spec


@st.composite
def models(draw) -> ModelSpec:
    kv_heads = draw(st.integers(1, 6))
    return tiny_spec(
        num_kv_heads=kv_heads,
        num_heads=kv_heads * draw(st.integers(1, 6)),
        intermediate_size=draw(st.integers(64, 4096)),
        vocab_size=draw(st.integers(512, 5000)),
        tied_embeddings=draw(st.booleans()),
    )


@given(models(), st.data())
def test_every_head_column_and_row_has_one_rank(spec, data):
    size = data.draw(st.sampled_from(degrees(spec)))
    shares = [share_of(spec, rank, size) for rank in range(size)]
    for field, whole in (
        ("heads", spec.num_heads),
        ("columns", spec.intermediate_size),
        ("vocabulary", spec.vocab_size),
    ):
        parts = [getattr(share, field) for share in shares]
        assert list(chain.from_iterable(parts)) == list(range(whole))
        assert all(parts), f"a rank has no {field}"


@given(models(), st.data())
def test_queries_stay_with_their_keys(spec, data):
    size = data.draw(st.sampled_from(degrees(spec)))
    group = spec.num_heads // spec.num_kv_heads
    for share in (share_of(spec, rank, size) for rank in range(size)):
        assert len(share.heads) % len(share.kv_heads) == 0
        own_group = len(share.heads) // len(share.kv_heads)
        for index, head in enumerate(share.heads):
            assert share.kv_heads[index // own_group] == head // group


def test_kv_heads_are_replicated_when_there_are_fewer_than_ranks():
    spec = tiny_spec(num_heads=8, num_kv_heads=2)
    assert degrees(spec) == [1, 2, 4, 8]
    shares = [share_of(spec, rank, 4) for rank in range(4)]
    assert [list(share.kv_heads) for share in shares] == [[0], [0], [1], [1]]
    assert [list(share.heads) for share in shares] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_who_has_more_heads_has_fewer_columns():
    spec = tiny_spec(
        num_heads=9, num_kv_heads=3, head_dim=64, hidden_size=576, intermediate_size=1536
    )
    weights = []
    for share in (share_of(spec, rank, 2) for rank in range(2)):
        heads = 2 * len(share.heads) + 2 * len(share.kv_heads)
        weights.append(heads * spec.head_dim + 3 * len(share.columns))
    assert max(weights) / min(weights) < 1.04


def test_what_a_model_cannot_be_cut_into_is_refused_with_what_it_can():
    with pytest.raises(ConfigError, match=r"tensor_parallel: .* 9 .* 3 .* 4 ranks .* 1, 2, 3, 9"):
        check_degree(tiny_spec(num_heads=9, num_kv_heads=3), 4)


@pytest.mark.parametrize("experts", [None, ExpertsSpec(3, 2, 96, normalise=True)])
def test_cut_tensors_have_the_shapes_that_the_rank_computes_with(experts):
    spec = tiny_spec(
        vocab_size=101, attention_bias=True, attention_out_bias=True, mlp_bias=not experts,
        experts=experts,
    )  # fmt: skip
    for rank in range(2):
        share = share_of(spec, rank, 2)
        for name, shape in weight_shapes(spec).items():
            cut = cut_of(spec, share, name)
            assert cut is None or 0 <= cut.start < cut.stop <= shape[cut.axis]
        local = share_spec(spec, share)
        q = cut_of(spec, share, "model.layers.0.self_attn.q_proj.weight")
        k = cut_of(spec, share, "model.layers.0.self_attn.k_proj.bias")
        assert q is not None and k is not None
        assert q.stop - q.start == local.num_heads * spec.head_dim
        assert k.stop - k.start == local.num_kv_heads * spec.head_dim


def test_one_rank_reads_everything_whole():
    spec = tiny_spec()
    assert all(cut_of(spec, share_of(spec, 0, 1), name) is None for name in weight_shapes(spec))
