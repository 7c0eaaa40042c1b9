"""What rank 0 tells the others arrives as it was, or is refused."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import Batching, Controls, Priority, SamplingParams
from chairlift.workers.drained_codec import pack_drained, unpack_drained
from chairlift.workers.intake import Drained
from chairlift.workers.sequence import Sequence, SequenceKey
from support.ranks import facts

tokens = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**31)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats(allow_nan=False)
columns = st.lists(tokens, max_size=4).map(tuple)
samplings = st.builds(
    SamplingParams,
    max_tokens=counts,
    seed=longs,
    temperature=numbers,
    top_p=numbers,
    top_k=counts,
    min_p=numbers,
    stop_token_ids=columns,
    ignore_eos=st.booleans(),
    min_tokens=counts,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    repetition_penalty=numbers,
    logit_bias=st.lists(st.tuples(tokens, numbers), max_size=3).map(tuple),
    allowed_token_ids=columns,
    logprobs=st.none() | counts,
    prompt_logprobs=st.none() | counts,
    grammar=names,
)
keys = st.builds(SequenceKey, longs, longs)
sequences = st.builds(
    Sequence,
    key=keys,
    request_id=names,
    tenant=names,
    choice=counts,
    sampling=samplings,
    arrival=longs,
    tokens=st.lists(tokens, min_size=1, max_size=5) | st.just([1, 2, 3]),
    num_prompt=counts,
    cache_salt=names,
    priority=st.sampled_from(Priority),
    weight=numbers,
)
drained = st.builds(
    Drained,
    controls=st.none()
    | st.builds(
        Controls,
        version=longs,
        batching=st.sampled_from(Batching),
        token_budget=counts,
        max_sequences=counts,
        by_person=st.booleans(),
        fair=st.booleans(),
    ),
    arrivals=st.lists(sequences, max_size=3).map(tuple),
    cancelled=st.lists(keys, max_size=3).map(tuple),
    left=st.frozensets(longs, max_size=3),
    hand_over=st.booleans(),
    stop=st.booleans(),
)


def all_of(news: Drained) -> tuple[object, ...]:
    """Sequences by their facts: they are equal to themselves alone."""
    bare = dataclasses.replace(news, arrivals=())
    return bare, [facts(sequence) for sequence in news.arrivals]


@given(drained)
def test_what_is_unpacked_is_what_was_packed(news):
    assert all_of(unpack_drained(pack_drained(news))) == all_of(news)


@given(drained)
def test_sequences_share_no_list(news):
    """Choices of a request come with equal tokens, and then each grows by itself."""
    arrivals = unpack_drained(pack_drained(news)).arrivals
    assert len({id(sequence.tokens) for sequence in arrivals}) == len(arrivals)


@settings(max_examples=300)
@given(drained, st.data())
def test_damaged_bytes_are_refused_or_are_another_message(news, data):
    message = pack_drained(news)
    cut = data.draw(st.integers(0, len(message) - 1))
    for broken in (message[:cut], message + b"\0"):
        with pytest.raises(ValueError, match="not what an intake"):
            unpack_drained(broken)
    changed = bytearray(message)
    changed[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        unpack_drained(bytes(changed))
    except ValueError:
        pass
