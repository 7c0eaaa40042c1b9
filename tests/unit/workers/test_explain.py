from chairlift.cluster.protocol import Controls
from chairlift.workers.explain import explain
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_records import Plan
from chairlift.workers.sequence import StepPlan
from support.engines import Rig, replica_info
from support.ledgers import FakeClock, record


def told(ledger: Ledger, request_id: str) -> list[str]:
    return explain(parse_ledger(ledger.content()), request_id)


def rig_of(controls: Controls, **info) -> tuple[Rig, Ledger]:
    """Each forward pass takes 10 ms, all else nothing."""
    clock = FakeClock()
    rig = Rig(controls, info=replica_info(**info))
    ledger = record(rig, clock=clock)

    def compute(_plan: StepPlan) -> None:
        clock.now += 0.010

    rig.during_advance = compute
    return rig, ledger


def test_a_wait_for_a_seat_and_a_prompt_in_chunks_are_told() -> None:
    rig, ledger = rig_of(Controls(max_sequences=1, token_budget=4))
    rig.submit(0, (9, 8, 7), max_tokens=3)
    rig.submit(1, range(10), max_tokens=2)
    rig.run_until_idle()
    assert told(ledger, "request-1") == [
        "request-1, choice 0: tenant anonymous, prompt of 10 tokens, at most 2 more",
        "     0.000 s  step 1       arrived",
        "     0.030 s  step 4       admitted after 30 ms: 30 ms for a seat",
        "     0.040 s  step 5       computed 10 tokens in 3 chunks up to step 7: 4 + 4 + 2",
        "     0.060 s  step 7       first output token",
        "     0.070 s  step 8       ended after 2 tokens of output: max_tokens was reached",
    ]


def test_who_stood_first_in_line_is_named() -> None:
    rig, ledger = rig_of(Controls(max_sequences=1, token_budget=64))
    for handle in range(3):
        rig.submit(handle, (handle, 1), max_tokens=2)
    rig.run_until_idle()
    (waited,) = (line for line in told(ledger, "request-2") if "admitted" in line)
    assert waited.endswith("admitted after 40 ms: 40 ms for a seat, behind request-1")


def test_a_preemption_is_told_and_what_it_cost() -> None:
    rig, ledger = rig_of(
        Controls(max_sequences=2, token_budget=64), blocks_total=4, max_sequence_tokens=16
    )
    rig.submit(0, (1, 2, 3), max_tokens=10)
    rig.submit(1, (4, 5, 6), max_tokens=8)
    rig.run_until_idle()
    victims = [each.preempted for each in parse_ledger(ledger.content()) if isinstance(each, Plan)]
    assert (1,) in victims
    lines = told(ledger, "request-1")
    (preempted,) = (line for line in lines if "preempted" in line)
    assert preempted.endswith("preempted: blocks were short; 9 tokens to compute again")
    assert sum("admitted" in line for line in lines) == 2
    assert any("blocks of the KV cache" in line for line in lines)
    assert "ended after 8 tokens of output" in lines[-1]


def test_each_choice_has_its_story_and_cached_tokens_are_told() -> None:
    rig, ledger = rig_of(Controls(max_sequences=4, token_budget=64))
    rig.submit(0, range(9), n=2, max_tokens=2)
    rig.run_until_idle()
    lines = told(ledger, "request-0")
    assert [line for line in lines if line.startswith("request-0")] == [
        f"request-0, choice {choice}: tenant anonymous, prompt of 9 tokens, at most 2 more"
        for choice in (0, 1)
    ]
    assert any(line.endswith("computed 1 token, after 8 tokens known already") for line in lines)


def test_cancellations_and_open_ends_are_told() -> None:
    rig, ledger = rig_of(Controls(max_sequences=1, token_budget=64))
    rig.submit(0, max_tokens=50)
    rig.submit(1)
    for _ in range(4):
        rig.engine.step()
    rig.intake.cancel(0, [1])
    rig.engine.step()
    ended = told(ledger, "request-1")[-1]
    assert "ended after 0 tokens of output: it was cancelled, having waited 30 ms" in ended
    assert "still open where these records end" in told(ledger, "request-0")[-1]


def test_a_request_from_before_the_records_is_told_as_far_as_they_reach() -> None:
    rig, ledger = rig_of(Controls(max_sequences=2, token_budget=64))
    ledger = record(rig, ring_bytes=16_000)
    rig.submit(0, (1, 2, 3), max_tokens=200)
    rig.run_until_idle()
    lines = told(ledger, "request-0")
    assert "was open already where these records begin" in lines[1]
    assert "ended after 200 tokens of output" in lines[-1]
    assert len(lines) == 3


def test_what_came_from_elsewhere_and_where_it_goes_on_is_told() -> None:
    rig, ledger = rig_of(Controls(max_sequences=4, token_budget=6))
    rig.submit(0, range(5), output=(1, 2, 3), max_tokens=9)
    for _ in range(5):
        rig.engine.step()
    rig.engine.hand_over()
    rig.run_until_idle()
    assert told(ledger, "request-0") == [
        "request-0, choice 0: tenant anonymous, prompt of 5 tokens, at most 9 more",
        "     0.000 s  step 1       arrived with 3 tokens of output",
        "     0.000 s  step 1       admitted",
        "     0.010 s  step 2       computed 6 tokens",
        "     0.020 s  step 3       computed 2 tokens, after 6 tokens known already",
        "     0.020 s  step 3       first output token here",
        "     0.040 s  step 6       ended after 6 tokens of output: it went to another replica",
    ]


def test_an_unknown_request_has_no_story() -> None:
    rig, ledger = rig_of(Controls())
    rig.submit(0)
    rig.run_until_idle()
    assert told(ledger, "request-7") == []
