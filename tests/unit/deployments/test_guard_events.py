"""Every move is told: to the log, to the trace, to the figures, and to who is to be called."""

import asyncio
import json
import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chairlift.cluster.config import TracingConfig
from chairlift.cluster.guard_policy import Webhook
from chairlift.cluster.guard_state import MoveKind, Rung
from chairlift.cluster.tracing import start_tracing
from chairlift.deployments.guard_events import GuardEvents, Origin
from chairlift.deployments.guard_view import describe
from support.guards import move

ORIGIN = Origin("prod", "llama")


class FakePager:
    """In place of a webhook's queue: keeps what is posted."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def post(self, body: bytes) -> None:
        self.bodies.append(json.loads(body))


def events_with(*owners: tuple[str, ...]) -> tuple[GuardEvents, list[FakePager]]:
    hooks = [Webhook(url="https://pager.example/x", owners=each) for each in owners]
    events, pagers = GuardEvents(ORIGIN, hooks), [FakePager() for _ in hooks]
    events._pagers = list(zip(hooks, pagers, strict=True))  # type: ignore[arg-type]  # no network
    return events, pagers


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (MoveKind.UP, logging.WARNING),
        (MoveKind.WAIT, logging.WARNING),
        (MoveKind.FREEZE, logging.WARNING),
        (MoveKind.DOWN, logging.INFO),
        (MoveKind.SET, logging.INFO),
    ],
)
def test_the_log_has_signal_value_threshold_owner_and_what(
    kind: MoveKind, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    GuardEvents(ORIGIN, ()).tell([move(kind=kind)])
    (record,) = caplog.records
    assert record.levelno == level
    for part in ("kv_use", "replica-1", "0.97", "0.95", "serving", "fewer tokens in a step"):
        assert part in record.getMessage()


def test_a_persons_name_stands_in_place_of_the_owner() -> None:
    line = describe(move(kind=MoveKind.SET, by="ann", signal="", value=None, threshold=None))
    assert line == "set normal → smaller_steps, by ann: fewer tokens in a step"
    assert describe(move(shadow=True)).endswith("(only said)")
    stay = move(kind=MoveKind.HOLD, before=Rung.RESERVE, after=Rung.RESERVE, signal="", what="")
    assert describe(stay) == "hold on reserve, owner serving"


def test_moves_are_counted_by_kind_signal_and_rung() -> None:
    events = GuardEvents(ORIGIN, ())
    events.tell([move(), move(), move(kind=MoveKind.DOWN, after=Rung.NORMAL)])
    assert events.totals() == [
        {"kind": "down", "signal": "kv_use", "rung": "normal", "count": 1},
        {"kind": "up", "signal": "kv_use", "rung": "smaller_steps", "count": 2},
    ]


def test_only_who_wants_to_hear_of_the_owner_is_called() -> None:
    events, (everything, serving, capacity) = events_with((), ("serving",), ("capacity",))
    events.tell([move(), move(calls=True)])
    assert (len(everything.bodies), len(serving.bodies), capacity.bodies) == (1, 1, [])
    (body,) = serving.bodies
    assert body.pop("text") == describe(move())
    assert body == {
        "id": "prod-7-up",
        "service": "prod",
        "model": "llama",
        "at": 1000.0,
        "version": 7,
        "kind": "up",
        "before": "normal",
        "after": "smaller_steps",
        "signal": "kv_use",
        "value": 0.97,
        "threshold": 0.95,
        "where": "replica-1",
        "owner": "serving",
        "by": "",
        "shadow": False,
        "what": "fewer tokens in a step",
        "calls": True,
    }


def test_each_move_is_a_span_of_its_own() -> None:
    spans = InMemorySpanExporter()
    tracer = start_tracing(TracingConfig(endpoint="http://localhost:1"), "hub", spans)
    assert tracer is not None
    GuardEvents(ORIGIN, (), tracer).tell([move(), move(kind=MoveKind.WAIT, value=None)])
    tracer.close()
    up, wait = spans.get_finished_spans()
    assert (up.name, wait.name) == ("guard.up", "guard.wait")
    assert up.attributes is not None and wait.attributes is not None
    assert up.attributes["value"] == 0.97 and "value" not in wait.attributes
    assert up.attributes["after"] == "smaller_steps"


def test_closing_without_a_call_is_well() -> None:
    async def main() -> None:
        await GuardEvents(ORIGIN, [Webhook(url="https://pager.example/x")]).close()

    asyncio.run(main())
