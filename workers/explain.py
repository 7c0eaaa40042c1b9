"""Tells the story of one request, from a ledger, in sentences.

Owns the words. What happened is ``ledger_story``'s; how the records read is the file's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chairlift.cluster.protocol import FinishReason
from chairlift.workers.decisions import Reason, SequenceKey
from chairlift.workers.ledger_records import Record
from chairlift.workers.ledger_story import (
    Admitted,
    Arrived,
    Computed,
    Ended,
    Event,
    FirstToken,
    Follower,
    Preempted,
    Story,
    WaitedFor,
)

__all__ = ["REASONS", "explain"]

REASONS: Mapping[Reason | None, str] = {
    None: "the end of the step under way",
    Reason.NO_BLOCKS: "blocks of the KV cache",
    Reason.BUDGET: "a part of the token budget",
    Reason.MAX_SEQUENCES: "a seat",
    Reason.BATCH: "the end of the present batch",
    Reason.SHARED_PREFIX: "another one's computing of the same prefix",
    Reason.FAIRNESS: "tenants that had less",
    Reason.PRIORITY: "higher priorities",
    Reason.DEADLINE: "earlier deadlines",
    Reason.CANCELLED: "cancellations",
}
"""What somebody waits for."""

_ENDS = {
    FinishReason.STOP: "an end or stop token",
    FinishReason.LENGTH: "max_tokens was reached",
    FinishReason.CANCELLED: "it was cancelled",
    FinishReason.FAILED: "the step failed",
    FinishReason.HANDED_OVER: "it went to another replica",
}


def explain(records: Iterable[Record], request_id: str) -> list[str]:
    """The lines of a request's story, choice by choice; empty when the records do not know it."""
    follower = Follower(lambda name: name == request_id)
    for record in records:
        follower.take(record)
    stories = [story for story in follower.stories.values() if story.is_wanted]
    lines: list[str] = []
    for story in stories:
        lines += [*([""] if lines else []), *_tell(story, follower.names)]
    return lines


def _tell(story: Story, names: Mapping[SequenceKey, str]) -> Iterator[str]:
    yield (
        f"{story.request_id}, choice {story.choice}: tenant {story.tenant}, "
        f"prompt of {_tokens(story.num_prompt)}, at most {story.max_tokens} more"
    )
    if not story.is_whole:
        yield "              (it was open already where these records begin)"
    start = story.events[0].at if story.events else 0.0
    for event, text in _sentences(story, names):
        yield f"  {event.at - start:8.3f} s  step {event.step:<7} {text}"
    if story.finish is None:
        yield "              (it was still open where these records end)"


def _sentences(story: Story, names: Mapping[SequenceKey, str]) -> Iterator[tuple[Event, str]]:
    """Each event with its sentence; what is computed between two other events makes one."""
    pieces: list[Computed] = []
    has_output = not story.is_whole and story.num_output > 0
    for event in story.events:
        if isinstance(event, Computed):
            if not has_output or pieces or event.count > 1:
                pieces.append(event)
            if event.start + event.count >= story.num_prompt and pieces:
                yield pieces[0], _computed(pieces)
                pieces = []
            continue
        if pieces:
            yield pieces[0], _computed(pieces)
            pieces = []
        has_output = has_output or isinstance(event, FirstToken)
        yield event, _sentence(event, story, names)
    if pieces:
        yield pieces[0], _computed(pieces)


def _sentence(event: Event, story: Story, names: Mapping[SequenceKey, str]) -> str:
    match event:
        case Arrived(output=output):
            return "arrived" + (f" with {_tokens(output)} of output" if output else "")
        case Admitted(waits=waits, remaining=remaining):
            expected = (
                f"; {remaining[0]} (p50) to {remaining[1]} (p90) output tokens expected"
                if remaining is not None
                else ""
            )
            return f"admitted{_waited(' after', waits, names)}{expected}"
        case FirstToken():
            return "first output token" + (" here" if story.num_continued else "")
        case Preempted(tokens=tokens):
            return f"preempted: blocks were short; {_tokens(tokens)} to compute again"
        case Ended(finish=finish, waits=waits):
            return (
                f"ended after {_tokens(story.num_output)} of output: {_ENDS[finish]}"
                f"{_waited(', having waited', waits, names)}"
            )
        case Computed():
            return _computed([event])


def _computed(pieces: list[Computed]) -> str:
    first, last = pieces[0], pieces[-1]
    counts = " + ".join(str(piece.count) for piece in pieces)
    cached = f", after {_tokens(first.start)} known already" if first.start else ""
    if first is last:
        return f"computed {_tokens(first.count)}{cached}"
    chunks = f"in {len(pieces)} chunks up to step {last.step}: {counts}"
    total = sum(piece.count for piece in pieces)
    return f"computed {_tokens(total)} {chunks}{cached}"


def _waited(prefix: str, waits: tuple[WaitedFor, ...], names: Mapping[SequenceKey, str]) -> str:
    if not waits:
        return ""
    by_reason: dict[Reason | None, list[WaitedFor]] = {}
    for wait in sorted(waits, key=lambda wait: -wait.seconds):
        by_reason.setdefault(wait.reason, []).append(wait)
    parts = [
        f"{_ms(sum(wait.seconds for wait in group))} for {REASONS[reason]}{_behind(group, names)}"
        for reason, group in by_reason.items()
    ]
    return f"{prefix} {_ms(sum(wait.seconds for wait in waits))}: {'; '.join(parts)}"


def _behind(group: list[WaitedFor], names: Mapping[SequenceKey, str]) -> str:
    """Who stood first in line meanwhile, the one that stood there longest by name."""
    heads = [wait.behind for wait in group if wait.behind is not None]
    if not heads:
        return ""
    others = f" and {len(heads) - 1} more" if len(heads) > 1 else ""
    return f", behind {names.get(heads[0], heads[0])}{others}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
