"""Streams of random tokens with log probabilities, against whole texts."""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import FinishReason
from chairlift.router.ask import Ask
from chairlift.router.tokenizer import Tokenizer
from support.asgi_client import call
from support.http_app import http_app
from support.scored import ScriptedRouter, logprobs_of, says, scored_request
from support.vocabularies import byte_level_metadata, sentence_piece_metadata, tokenizer_of

VOCABULARIES = {
    "byte-level": tokenizer_of(byte_level_metadata("a b", "Ġ a", "Ã ©", "Ġa b", own=["<own>"])),
    "sentence-piece": tokenizer_of(
        sentence_piece_metadata("▁", "a", "b", "▁a", "ab", "é", "漢", own=["<own>"])
    ),
}
CHARACTERS = "aab é漢🙂"
FINISHES = [FinishReason.LENGTH, FinishReason.STOP]


@st.composite
def chunked(draw: st.DrawFn, tokenizer: Tokenizer) -> list[list[int]]:
    """Random ids mixed with the tokens of real text, cut anywhere; no chunk is empty."""
    noise = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=4)
    text = st.text(CHARACTERS, max_size=8).map(
        lambda text: tokenizer.encode(text, add_special=False)
    )
    tokens = [token for part in draw(st.lists(noise | text, max_size=5)) for token in part] or [5]
    cuts = sorted(draw(st.sets(st.integers(1, len(tokens)), max_size=len(tokens))))
    return [tokens[i:j] for i, j in zip([0, *cuts], [*cuts, len(tokens)], strict=True) if i < j]


STOPS = st.lists(st.text(CHARACTERS + "\ufffd", min_size=1, max_size=3), max_size=3, unique=True)


def decoded(tokenizer: Tokenizer, tokens: list[int]) -> tuple[str, bool]:
    """Whole characters of the text, and whether bytes of another one follow."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(b"".join(map(tokenizer.token_bytes, tokens)))
    if tokenizer.strips_space:
        text = text.removeprefix(" ")
    return text, bool(decoder.getstate()[0])


def expected_tokens(
    tokenizer: Tokenizer, tokens: list[int], told: str, *, stopped: int | None, ended: bool
) -> list[tuple[int, int]]:
    """Reference: (token, offset) of those of which a part is told, or that have no part to tell.

    ``stopped``: number of tokens up to the one that completed a stop string.
    """
    found = []
    for index, token in enumerate(tokens[:stopped]):
        last = index == len(tokens) - 1
        before, _ = decoded(tokenizer, tokens[:index])
        if last and ended and stopped is None:
            found.append((token, len(told)))
            continue
        after, open_ = decoded(tokenizer, tokens[: index + 1])
        completes = stopped is not None and index == stopped - 1
        if len(before) < len(told) or (len(after) + open_ <= len(told) and not completes):
            found.append((token, len(before)))
    return found


@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
def test_the_joined_updates_have_each_token_that_the_text_has_whatever_the_chunks(name, data):
    tokenizer = VOCABULARIES[name]
    chunks = data.draw(chunked(tokenizer))
    stops = tuple(data.draw(STOPS))
    finish = data.draw(st.sampled_from(FINISHES))
    tokens = [token for chunk in chunks for token in chunk]

    async def main() -> None:
        router = ScriptedRouter(says(*chunks, finish=finish), tokenizer)
        flight = router.submit(Ask(scored_request(logprobs=1), stop=stops))
        updates = [update async for turn in flight for update in turn]
        text = "".join(update.text for update in updates)
        number = sum(update.num_tokens for update in updates)
        scored = [each for update in updates for each in update.tokens]
        assert all(each.logprobs == logprobs_of(each.token, 1) for each in scored)
        stopped = None if number == len(tokens) and not _cut(text) else number
        assert [(each.token, each.offset) for each in scored] == expected_tokens(
            tokenizer, tokens, text, stopped=stopped, ended=finish is FinishReason.STOP
        )
        if stopped is None:
            assert len(scored) == number
        for update in updates:
            assert update.text or update.finish, "an empty update"

    def _cut(text: str) -> bool:
        shown = tokens[:-1] if finish is FinishReason.STOP else tokens
        return text != tokenizer.decode(shown)

    asyncio.run(main())


BODY = {"max_tokens": 60, "seed": 1, "n": 2}
REQUESTS = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/v1/completions": {"prompt": "aé", "logprobs": 2},
}


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    """Each choice of a stream as it would be in one piece."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for piece in event["choices"]:
            choice = choices.setdefault(piece["index"], {"text": "", "logprobs": {}, "finish": []})
            choice["text"] += piece.get("text") or piece.get("delta", {}).get("content") or ""
            choice["finish"] += [piece["finish_reason"]] * bool(piece["finish_reason"])
            for key, value in (piece["logprobs"] or {}).items():
                if isinstance(value, list):
                    assert value, "a list without entries"
                    choice["logprobs"].setdefault(key, []).extend(value)
    return choices


@pytest.mark.parametrize("path", REQUESTS)
@settings(deadline=None)
@given(data=st.data(), echo=st.booleans(), max_tokens=st.sampled_from([0, 60]))
def test_a_stream_has_what_the_whole_has(path, data, echo, max_tokens):
    tokenizer = VOCABULARIES["byte-level"]
    chunks = data.draw(chunked(tokenizer))
    body = REQUESTS[path] | BODY | {"stop": data.draw(STOPS)}
    if echo and "prompt" in body:
        body |= {"echo": True, "max_tokens": max_tokens}
    finish = data.draw(st.sampled_from(FINISHES))

    async def ask(**more: Any) -> Any:
        router = ScriptedRouter(says(*chunks, finish=finish), tokenizer)
        app = http_app(router, tokenizer=tokenizer)
        reply = await call(app, "POST", path, body | more)
        assert reply.status == 200, reply.body
        return reply

    async def main() -> None:
        whole = json.loads((await ask()).body)
        streamed = joined((await ask(stream=True)).events()[:-1])
        for choice in whole["choices"]:
            stream = streamed[choice["index"]]
            assert stream["text"] == choice.get("text", choice.get("message", {}).get("content"))
            assert stream["finish"] == [choice["finish_reason"]]
            lists = {k: v for k, v in choice["logprobs"].items() if isinstance(v, list)}
            assert {key: stream["logprobs"].get(key, []) for key in lists} == lists

    asyncio.run(main())
