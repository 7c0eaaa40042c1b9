"""What the updates of a generation add to an answer of ``chairlift.v1``.

Owns the answer's messages. What is told, and when, is the business of ``transcript``, for HTTP
alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chairlift.deployments.fan_in import Flights, Turn
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_response import Usage
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.tool_reader import CallDelta
from chairlift.deployments.transcript import Piece, Transcript
from chairlift.router.scored_text import ScoredToken
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Answer", "TypedLogprobs", "joined", "usage_of"]

_FINISHES = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "tool_calls": pb.FINISH_REASON_TOOL_CALLS,
}


class TypedLogprobs:
    """Writes log probabilities as messages."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes

    def columns(self, tokens: Sequence[ScoredToken], before: int) -> list[pb.TokenLogprobs]:
        """One message a token."""
        return [
            pb.TokenLogprobs(
                token_id=scored.token,
                token=self._bytes(scored.token, skip_special=False),
                logprob=None if scored.logprobs is None else scored.logprobs.chosen,
                top=[
                    pb.TopLogprob(
                        token_id=token,
                        token=self._bytes(token, skip_special=False),
                        logprob=logprob,
                    )
                    for token, logprob in (() if scored.logprobs is None else scored.logprobs.top)
                ],
            )
            for scored in tokens
        ]


class Answer:
    """One generation's answer, as it grows."""

    def __init__(self, generation: Generation, flights: Flights, tokenizer: Tokenizer) -> None:
        writer = TypedLogprobs(tokenizer) if generation.with_logprobs else None
        self._transcript = Transcript(generation, writer)
        self._flights = flights
        self._told = [0] * generation.num_choices
        self._open = generation.num_choices
        self._seed: int | None = generation.seeds[0]

    async def chunk(self, turn: Turn) -> pb.GenerateChunk:
        """What the news of one turn add; the first has the seed, the last the usage."""
        choices = [self._choice(piece) for piece in await self._transcript.pieces(turn)]
        usage = None if self._open else usage_of(self._flights.usage)
        seed, self._seed = self._seed, None
        return pb.GenerateChunk(choices=choices, usage=usage, seed=seed)

    def _choice(self, piece: Piece[list[pb.TokenLogprobs]]) -> pb.Choice:
        begin = self._told[piece.choice]
        end = self._told[piece.choice] = begin + piece.num_tokens
        if piece.finish is not None:
            self._open -= 1
        return pb.Choice(
            index=piece.choice,
            text=piece.text,
            token_ids=self._flights.tokens(piece.choice, begin, end),
            logprobs=[each for part in piece.logprobs for each in part],
            finish_reason=_FINISHES[piece.finish],
            tool_calls=map(_call, piece.calls),
        )


def _call(delta: CallDelta) -> pb.ToolCall:
    function = pb.FunctionCall(name=delta.name or "", arguments=delta.arguments)
    return pb.ToolCall(id=delta.id or "", function=function, index=delta.call)


def joined(chunks: Iterable[pb.GenerateChunk], num_choices: int) -> list[pb.Choice]:
    """All chunks of an answer together, by choice."""
    choices = [pb.Choice(index=index) for index in range(num_choices)]
    texts: list[list[str]] = [[] for _ in choices]
    for chunk in chunks:
        for piece in chunk.choices:
            choice = choices[piece.index]
            texts[piece.index].append(piece.text)
            choice.token_ids.extend(piece.token_ids)
            choice.logprobs.extend(piece.logprobs)
            choice.finish_reason = piece.finish_reason
            for call in piece.tool_calls:
                if call.id:
                    choice.tool_calls.append(call)
                else:
                    choice.tool_calls[call.index].function.arguments += call.function.arguments
    for choice, pieces in zip(choices, texts, strict=True):
        choice.text = "".join(pieces)
    return choices


def usage_of(usage: Usage) -> pb.Usage:
    """The same as a message."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
