from chairlift.cluster.protocol import FinishReason, SamplingParams
from chairlift.cluster.traceparent import TraceParent
from chairlift.workers.sequence import Sequence, SequenceKey
from chairlift.workers.visits import Visits
from support.traces import MemoryTracer

PARENT = TraceParent(7, 9, sampled=True)


class Engine:
    """Counts steps and seconds."""

    def __init__(self) -> None:
        self.steps, self.now = 0, 100.0
        self.tracer = MemoryTracer(clock=lambda: self.now)
        self.visits = Visits(self.tracer, "replica", lambda: self.steps)


def sequence(handle: int = 1, output: int = 0) -> Sequence:
    return Sequence(
        key=SequenceKey(1, handle),
        request_id="name",
        tenant="somebody",
        choice=2,
        sampling=SamplingParams(max_tokens=8),
        arrival=0,
        tokens=[1] * (3 + output),
        num_prompt=3,
    )


def test_a_visit_is_a_span_under_the_routers() -> None:
    engine, one = Engine(), sequence(output=2)
    engine.steps = 4
    engine.visits.came(one, str(PARENT))
    engine.steps, engine.now = 9, 103.0
    one.tokens += [5, 6, 7]
    one.preemptions, one.num_cached, one.finish = 1, 2, FinishReason.LENGTH
    engine.visits.ended([one.key])
    assert engine.tracer.spans == []
    engine.visits.tell()
    (span,) = engine.tracer.named("engine")
    assert (span.parent.trace_id, span.parent.span_id) == (PARENT.trace_id, PARENT.span_id)
    assert span.end_time - span.start_time == 3_000_000_000
    assert span.status.is_unset
    assert dict(span.attributes) == {
        "chairlift.replica": "replica",
        "chairlift.request.id": "name",
        "chairlift.choice": 2,
        "chairlift.finish_reason": "length",
        "chairlift.first_step": 5,
        "chairlift.steps": 5,
        "chairlift.prompt_tokens": 3,
        "chairlift.cached_tokens": 2,
        "chairlift.brought_tokens": 2,
        "chairlift.output_tokens": 3,
        "chairlift.preemptions": 1,
    }


def test_what_the_loop_broke_off_has_failed() -> None:
    engine, one = Engine(), sequence()
    engine.visits.came(one, str(PARENT))
    engine.visits.ended([one.key])
    engine.visits.tell()
    (span,) = engine.tracer.spans
    assert not span.status.is_ok
    assert span.attributes["chairlift.finish_reason"] == "failed"


def test_only_traces_that_are_recorded_are_noted() -> None:
    engine = Engine()
    for handle, text in enumerate(["", "nonsense", str(TraceParent(7, 9, sampled=False))]):
        one = sequence(handle)
        engine.visits.came(one, text)
        engine.visits.ended([one.key])
    engine.visits.close()
    assert engine.tracer.spans == []
