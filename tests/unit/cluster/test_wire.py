"""What goes over the data plane comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    Answer,
    Batching,
    BlockEvents,
    Controls,
    Delta,
    FinishReason,
    Frame,
    LoadReport,
    Priority,
    Refusal,
    Request,
    SamplingParams,
    Submission,
    TokenLogprobs,
)
from support.engines import replica_info

tokens = st.integers(0, 2**32 - 1)
floats = st.floats(width=32, allow_nan=False)
logprobs = st.builds(
    TokenLogprobs, floats, st.lists(st.tuples(tokens, floats), max_size=3).map(tuple)
)
many_logprobs = st.lists(logprobs, max_size=3).map(tuple)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**32 - 1),
    seed=st.integers(0, 2**64 - 1),
    temperature=floats,
    top_p=floats,
    top_k=tokens,
    min_p=floats,
    stop_token_ids=st.lists(tokens).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=tokens,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=st.floats(0.0625, 8, width=32),
    logit_bias=st.lists(st.tuples(tokens, floats)).map(tuple),
    allowed_token_ids=st.lists(tokens).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
deltas = st.builds(
    Delta,
    handle=st.integers(0, 2**64 - 1),
    tokens=st.lists(tokens, max_size=4).map(tuple),
    finish=st.none() | st.sampled_from(FinishReason),
    cached_tokens=tokens,
    logprobs=many_logprobs,
    prompt_logprobs=many_logprobs,
)
loads = st.builds(
    LoadReport,
    *([tokens] * 12),
    *(floats, tokens, st.booleans(), tokens),
    *([tokens] * 2),
    *([st.floats(allow_nan=False)] * 2),
    tokens,
)
names = st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple)
block_events = st.none() | st.builds(BlockEvents, st.booleans(), names, names)


@given(
    st.builds(
        Request,
        id=st.text(),
        prompt=st.lists(tokens, min_size=1).map(tuple),
        sampling=sampling,
        n=st.integers(1, 128),
        tenant=st.text(),
        cache_salt=st.text(),
        priority=st.sampled_from(Priority),
        weight=st.floats(0.0625, 100, width=32),
        traceparent=st.text(),
    ),
    st.integers(0, 127),
)
def test_submission_survives(request: Request, choice: int) -> None:
    output = (1, 2) if request.n == 1 else ()
    submission = Submission(7, request, choice, output)
    message = pb.Submit.FromString(wire.submission_to_wire(submission).SerializeToString())
    assert wire.submission_from_wire(message) == submission


@given(st.lists(deltas, max_size=5), loads, block_events)
def test_frame_survives(rows: list[Delta], load: LoadReport, blocks: BlockEvents | None) -> None:
    sent = wire_frame.frame_to_wire(rows, load, blocks)
    message = pb.Frame.FromString(sent.SerializeToString())
    assert wire_frame.frame_from_wire(message) == Frame(tuple(rows), load, blocks)


def test_answer_and_controls_survive() -> None:
    for answer in (Answer(3), Answer(4, Refusal.TOO_LONG, "why")):
        assert wire.answer_from_wire(wire.answer_to_wire(answer)) == answer
    controls = Controls(9, Batching.STATIC_SORTED, 77, 5, by_person=True, fair=False)
    assert wire.controls_from_wire(wire.controls_to_wire(controls)) == controls


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (pb.Submit(n=1, sampling=pb.Sampling(max_tokens=1, repetition_penalty=1)), "prompt"),
        (pb.Submit(prompt=[1], sampling=pb.Sampling(max_tokens=1, repetition_penalty=1)), "n"),
        (pb.Submit(prompt=[1], n=1), "weight"),
        (pb.Submit(prompt=[1], n=1, weight=float("nan")), "weight"),
        (pb.Submit(prompt=[1], n=2, weight=1, output=[1]), "output"),
        (pb.Submit(prompt=[1], n=2, handle=2**64 - 1, weight=1), "handle"),
        (pb.Submit(prompt=[1], n=1, weight=1), "max_tokens"),
        (
            pb.Submit(prompt=[1], n=1, weight=1, sampling=pb.Sampling(max_tokens=1)),
            "repetition_penalty",
        ),
    ],
)
def test_malformed_submission_names_the_field(message: pb.Submit, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        wire.submission_from_wire(message)


@pytest.mark.parametrize(
    "message",
    [
        pb.Frame(handles=[1]),
        pb.Frame(handles=[1], counts=[2], finishes=[0], tokens=[5]),
        pb.Frame(handles=[1], counts=[1], finishes=[0], tokens=[5], cached=[pb.Cached(row=1)]),
        pb.Frame(
            handles=[1],
            counts=[0],
            finishes=[0],
            logprobs=[pb.Logprobs(chosen=[0.0], counts=[2], top_tokens=[1], top_values=[0.0])],
        ),
    ],
)
def test_frame_whose_columns_contradict_each_other_is_refused(message: pb.Frame) -> None:
    with pytest.raises(ValueError):
        wire_frame.frame_from_wire(message)


@pytest.mark.parametrize(
    "field", ["vocab_size", "max_sequence_tokens", "max_sequences", "block_size", "blocks_total"]
)
def test_a_replica_that_could_run_nothing_is_refused(field: str) -> None:
    info = replica_info()
    message = wire.welcome_to_wire(info)
    assert wire.welcome_from_wire(message) == info
    message.ClearField(field)  # type: ignore[arg-type]  # the stubs want a literal
    with pytest.raises(ValueError, match=f"welcome: {field} must"):
        wire.welcome_from_wire(message)
