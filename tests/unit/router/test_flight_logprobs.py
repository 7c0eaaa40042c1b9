"""Flights that were asked for log probabilities, fed by hand."""

import asyncio

import pytest

from chairlift.cluster.errors import InternalError
from chairlift.cluster.protocol import Delta, FinishReason
from support.scored import (
    logprobs_of,
    prompt_logprobs,
    scored_delta,
    scored_request,
    scripted_flight,
    tell,
)
from support.vocabularies import sentence_piece_metadata, tokenizer_of

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


async def read(flight):
    """All updates, and the tokens of each choice with their values."""
    updates = [update async for turn in flight for update in turn]
    tokens = {}
    for update in updates:
        tokens.setdefault(update.choice, []).extend(
            (scored.token, scored.logprobs) for scored in update.tokens
        )
    return updates, tokens


def scores(data: bytes, k: int):
    return [(token, logprobs_of(token, k)) for token in data]


def test_every_choice_has_the_values_of_its_own_tokens():
    async def main():
        request = scored_request(n=2, logprobs=2)
        flight, _ = scripted_flight(request)
        tell(flight, scored_delta(request, 1, b"xy"))
        tell(flight, scored_delta(request, 0, b"a"))
        tell(flight, scored_delta(request, 0, b"b", LENGTH), 0.1)
        tell(flight, scored_delta(request, 1, b"z\x00", STOP), 0.1)
        _, tokens = await read(flight)
        assert tokens == {0: scores(b"ab", 2), 1: scores(b"xyz\x00", 2)}

    asyncio.run(main())


def test_the_values_of_the_prompt_come_once_with_the_first_update():
    async def main():
        request = scored_request(b"abc", n=2, logprobs=1, prompt_logprobs=1)
        prompt = prompt_logprobs(request)
        flight, _ = scripted_flight(request)
        for choice in range(2):
            tell(flight, scored_delta(request, choice, b"\xc3", prompt_logprobs=prompt))
        assert len(prompt) == 2
        reading = asyncio.create_task(read(flight))
        await asyncio.sleep(0.01)
        for choice in range(2):
            tell(flight, scored_delta(request, choice, b"\xa9"))
            await asyncio.sleep(0.01)
            tell(flight, scored_delta(request, choice, b"!", LENGTH))
        updates, _ = await reading
        told = [(update.choice, update.text, update.prompt_logprobs) for update in updates]
        assert sorted(told, key=lambda told: told[0]) == [
            (0, "é", prompt),
            (0, "!", ()),
            (1, "é", prompt),
            (1, "!", ()),
        ]

    asyncio.run(main())


def test_who_does_not_ask_is_told_nothing():
    async def main():
        request = scored_request()
        flight, _ = scripted_flight(request)
        delta = Delta(0, (65,), LENGTH, logprobs=(logprobs_of(65, 3),))
        tell(flight, delta)
        updates, tokens = await read(flight)
        assert tokens == {0: []}
        assert updates[0].prompt_logprobs == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    "delta",
    [
        Delta(0, (65, 66), LENGTH),
        Delta(0, (65, 66), LENGTH, logprobs=(logprobs_of(65, 0),)),
        Delta(0, (65,), LENGTH, logprobs=(logprobs_of(65, 0),)),
    ],
    ids=["none", "too few", "none of the prompt"],
)
def test_a_replica_that_leaves_values_out_fails_the_request(delta):
    async def main():
        flight, carrier = scripted_flight(scored_request(logprobs=0, prompt_logprobs=0))
        tell(flight, delta)
        with pytest.raises(InternalError, match="log probabilities"):
            await read(flight)
        assert carrier.cancelled == {0}

    asyncio.run(main())


def test_the_luckiest_choice_tells_what_came_from_the_cache():
    async def main():
        request = scored_request(n=3)
        flight, _ = scripted_flight(request)
        assert flight.cached_tokens == 0
        tell(flight, Delta(0, (), cached_tokens=4))
        tell(flight, Delta(1, (65,), cached_tokens=16))
        for choice in range(3):
            tell(flight, Delta(choice, (65,), LENGTH))
        await read(flight)
        assert flight.cached_tokens == 16
        assert flight.output_tokens == 4

    asyncio.run(main())


def test_at_least_min_tokens_count_whatever_the_stop_strings():
    async def main():
        request = scored_request(min_tokens=3)
        flight, _ = scripted_flight(request, ("a",))
        tell(flight, Delta(0, tuple(b"aaaba")))
        updates, _ = await read(flight)
        assert [(u.text, u.num_tokens, u.finish) for u in updates] == [("aaab", 5, "stop")]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("prompt", "continues", "text"),
    [
        ([260], True, " a"),  # … a a
        ([260], False, "a"),
        ([1], True, "a"),  # <s> is no text, so the text begins here
    ],
)
def test_a_space_at_the_begin_is_kept_where_the_text_goes_on(prompt, continues, text):
    pieces = tokenizer_of(sentence_piece_metadata("▁", "a", "▁a"))

    async def main():
        flight, _ = scripted_flight(scored_request(prompt), tokenizer=pieces, continues=continues)
        tell(flight, Delta(0, (261,), LENGTH))
        (update,), _ = await read(flight)
        assert update.text == text

    asyncio.run(main())
