"""What became of every request of a load, and the figures that follow from it.

Owns the definitions of the figures; knows nothing of HTTP or of how the load was made. All
times are seconds from the start of the run, read from one monotonic clock.

    intended      sent       first chunk         last chunk  ended
       │─── lag ───│              │       gaps       │         │
       │────── time to first ─────│                  │         │
       │──────────────────── end to end ───────────────────────│

Latencies count from the intended time: a generator or a server that falls behind makes them
longer, never fewer. A response shows when its chunks arrive and, at its end, how many tokens it
had, but not which chunk carried how many. So the tokens are spread evenly: with T tokens in C
chunks each chunk stands for T/C tokens, and a gap of g seconds before it counts T/C times as an
inter-token latency of g/(T/C). Spreading can hide a stall; the longest gap of each request does
not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from chairlift.evaluation.percentiles import Percentiles, percentiles, weighted_percentiles

__all__ = ["RequestRecord", "Summary", "steady_tokens_per_s", "summarise"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request.

    Attributes:
        intended, sent, ended: seconds from the start; ``sent`` is None when it was never sent.
        asked_prompt, asked_output: tokens that were asked for.
        chunks: when each chunk with text arrived; a completed request that yielded no text has
            the time of its last event instead.
        prompt_tokens, output_tokens: as the server counted them, or None when it did not say.
        failure: the class of the failure, or None for a completed request.
        detail: what the server or the system said of the failure.
        digest: of what was answered; None where it was not kept.
    """

    intended: float
    sent: float | None
    ended: float
    asked_prompt: int
    asked_output: int
    chunks: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: str | None = None
    detail: str = ""
    digest: str | None = None

    @property
    def tokens(self) -> int:
        """Output tokens by the server's count, by chunks without it."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens

    @property
    def time_to_first_token(self) -> float:
        return self.chunks[0] - self.intended

    @property
    def time_per_output_token(self) -> float:
        """(End − first token) over the tokens after the first; needs at least two."""
        return (self.ended - self.chunks[0]) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run; latencies in seconds, over completed requests only.

    Attributes:
        offered, completed: requests. Everything offered is completed or in ``failures``.
        failures: requests by class of failure.
        details: one example of what was said, by class of failure.
        duration: from the first intended time to the last end.
        output_tokens, prompt_tokens: of completed requests.
        chunks: chunks of completed requests; below ``output_tokens`` where chunks carry several.
        uncounted: completed requests whose tokens the server did not count.
        time_to_first_token, end_to_end, time_per_output_token, longest_gap: by request.
        inter_token_latency: by token.
        lag: of the generator, by request that was sent.
        asked_ratio: output tokens over those asked for, of completed requests.
        right_length: share of completed requests within 90% and 110% of the asked length.
    """

    offered: int
    completed: int
    failures: dict[str, int]
    details: dict[str, str]
    duration: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    uncounted: int
    time_to_first_token: Percentiles | None
    inter_token_latency: Percentiles | None
    time_per_output_token: Percentiles | None
    longest_gap: Percentiles | None
    end_to_end: Percentiles | None
    lag: Percentiles | None
    asked_ratio: float | None
    right_length: float | None

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.duration if self.duration else 0.0

    @property
    def total_tokens_per_s(self) -> float:
        tokens = self.prompt_tokens + self.output_tokens
        return tokens / self.duration if self.duration else 0.0


def summarise(records: Sequence[RequestRecord]) -> Summary:
    """The figures of a run; every request that was offered must be among the records."""
    done = [record for record in records if record.failure is None]
    asked = sum(record.asked_output for record in done)
    output = sum(record.tokens for record in done)
    start = min((record.intended for record in records), default=0.0)
    return Summary(
        offered=len(records),
        completed=len(done),
        failures=dict(Counter(r.failure for r in records if r.failure is not None).most_common()),
        details={r.failure: r.detail for r in reversed(records) if r.failure is not None},
        duration=max((record.ended for record in records), default=start) - start,
        prompt_tokens=sum(_prompt_tokens(record) for record in done),
        output_tokens=output,
        chunks=sum(len(record.chunks) for record in done),
        uncounted=sum(record.output_tokens is None for record in done),
        time_to_first_token=percentiles(r.time_to_first_token for r in done if r.chunks),
        inter_token_latency=weighted_percentiles(_token_gaps(done)),
        time_per_output_token=percentiles(
            r.time_per_output_token for r in done if r.chunks and r.tokens > 1
        ),
        longest_gap=percentiles(max(_gaps(r)) for r in done if len(r.chunks) > 1),
        end_to_end=percentiles(record.ended - record.intended for record in done),
        lag=percentiles(r.sent - r.intended for r in records if r.sent is not None),
        asked_ratio=output / asked if asked else None,
        right_length=sum(_right_length(r) for r in done) / len(done) if done else None,
    )


def steady_tokens_per_s(records: Iterable[RequestRecord], in_flight: int) -> float | None:
    """Output tokens per second while ``in_flight`` requests at once are past their first token.

    None when that was never so. A request counts from its first to its last chunk, and its tokens
    are spread evenly over its chunks, as everywhere here.
    """
    decoding = [r for r in records if r.failure is None and len(r.chunks) > 1]
    # At equal times the begins come first, and each period ends where anyone leaves.
    turns = sorted([(r.chunks[0], -1) for r in decoding] + [(r.chunks[-1], 1) for r in decoding])
    begun = accumulate(-turn for _, turn in turns)
    full = [
        (start, end)
        for ((start, _), (end, _)), number in zip(pairwise(turns), begun, strict=False)
        if number == in_flight
    ]
    seconds = sum(end - start for start, end in full)
    chunks = sorted((at, r.tokens / len(r.chunks)) for r in decoding for at in r.chunks[1:])
    times = [at for at, _ in chunks]
    sums = list(accumulate((tokens for _, tokens in chunks), initial=0.0))
    tokens = sum(sums[bisect_right(times, e)] - sums[bisect_right(times, s)] for s, e in full)
    return tokens / seconds if seconds else None


def _prompt_tokens(record: RequestRecord) -> int:
    return record.asked_prompt if record.prompt_tokens is None else record.prompt_tokens


def _right_length(record: RequestRecord) -> bool:
    return 0.9 <= record.tokens / record.asked_output <= 1.1


def _gaps(record: RequestRecord) -> list[float]:
    return [later - earlier for earlier, later in pairwise(record.chunks)]


def _token_gaps(records: Iterable[RequestRecord]) -> Iterator[tuple[float, float]]:
    """(latency, weight) of the tokens after each first chunk."""
    for record in records:
        if len(record.chunks) > 1:
            tokens_per_chunk = record.tokens / len(record.chunks)
            for gap in _gaps(record):
                yield gap / tokens_per_chunk, tokens_per_chunk
