import pytest

from chairlift.cluster.protocol import Batching, Controls, FinishReason
from chairlift.workers.decisions import Reason
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_records import Stage
from chairlift.workers.ledger_summary import Spread, Summary, summarise
from chairlift.workers.sequence import StepPlan
from support.engines import Rig
from support.ledgers import Crowd, FakeClock, record


def summary_of(ledger: Ledger) -> Summary:
    file = parse_ledger(ledger.content())
    return summarise(file.header, file)


def test_steps_tokens_waits_and_endings_are_counted() -> None:
    clock = FakeClock()
    rig = Rig(Controls(max_sequences=1, token_budget=64))
    ledger = record(rig, clock=clock)

    def compute(_plan: StepPlan) -> None:
        clock.now += 0.010

    rig.during_advance = compute
    for handle in range(3):
        rig.submit(handle, (handle, 5), max_tokens=2)
    rig.run_until_idle()
    summary = summary_of(ledger)
    assert (summary.steps, summary.failed_steps, summary.preemptions) == (6, 0, 0)
    assert (summary.planned_tokens, summary.output_tokens) == (9, 6)
    assert summary.arrived == 3 and summary.ended == {FinishReason.LENGTH: 3}
    # One waits for two steps of 10 ms, the next one for four.
    assert summary.waited == {("anonymous", Reason.MAX_SEQUENCES): pytest.approx(0.060)}
    assert summary.stage_seconds[Stage.ADVANCE] == pytest.approx(0.060)
    assert summary.step_time == Spread(6, pytest.approx(0.010), pytest.approx(0.010))
    assert summary.seats == Spread(6, 1.0, 1.0)


def test_who_still_waits_at_the_end_is_counted_too() -> None:
    clock = FakeClock()
    rig = Rig(Controls(max_sequences=1, token_budget=64))
    ledger = record(rig, clock=clock)
    rig.submit(0, max_tokens=100)
    rig.submit(1)
    rig.engine.step()
    clock.now += 3.0
    rig.engine.step()
    assert summary_of(ledger).waited == {("anonymous", Reason.MAX_SEQUENCES): pytest.approx(3.0)}


def test_the_figures_agree_with_the_load_report_of_an_eventful_run() -> None:
    rig = Rig(eos=(5,))
    ledger = record(rig)
    crowd = Crowd(rig, seed=7)
    for _ in range(500):
        crowd.step()
    crowd.calm()
    summary, load = summary_of(ledger), rig.engine.load
    assert summary.preemptions == load.preemptions
    assert summary.output_tokens == load.tokens_generated
    assert sum(summary.ended.values()) == summary.arrived
    assert {tenant for tenant, _ in summary.waited} == set("abc")


def test_each_change_of_controls_is_listed_once() -> None:
    rig = Rig()
    ledger = record(rig)
    changed = Controls(2, Batching.STATIC, 9, 2, by_person=True)
    for controls in (changed, Controls(1, Batching.CONTINUOUS, 9, 2)):
        rig.intake.set_controls(controls)
        rig.engine.step()
    assert summary_of(ledger).controls == [(1, changed)]
