"""The quick replica against the real scheduler, and what it does with all that it is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from chairlift.cluster.protocol import FinishReason, Request, SamplingParams
from chairlift.evaluation.fleet_replica import FleetReplica
from chairlift.evaluation.guard_replica import Machine, Replica
from chairlift.workers.scheduler import Outcome

EXACT = Machine(seats=4, token_budget=64, blocks=256, noise=0.0, per_position_s=1e-5)

Sent = tuple[float, int, int]
"""When a request of such a prompt comes, and the tokens of its output."""


def request(prompt: int, output: int) -> Request:
    return Request("", (1,) * prompt, SamplingParams(max_tokens=output, ignore_eos=True))


def quick(machine: Machine = EXACT, woken: Callable[[FleetReplica], None] = lambda _: None):
    return FleetReplica("quick", machine, random.Random(1), woken)


def real() -> Replica:
    return Replica("real", EXACT, EXACT.controls, random.Random(1))


def played(replica: FleetReplica | Replica, sent: Iterable[Sent]) -> dict[int, list[float]]:
    """When the tokens of each request came, by its handle."""
    coming, tokens = list(enumerate(sent)), dict[int, list[float]]()
    ends_at: float | None = None
    while coming or ends_at is not None:
        if coming and (ends_at is None or coming[0][1][0] < ends_at):
            handle, (now, prompt, output) = coming.pop(0)
            tokens[handle] = []
            replica.submit(0, handle, request(prompt, output))
            if ends_at is None:
                ends_at = replica.begin(now)
            elif isinstance(replica, FleetReplica):
                ends_at = replica.cut(now) or ends_at
            continue
        assert ends_at is not None
        now = ends_at
        for outcome in replica.end():
            tokens[outcome.key.handle] += [now] * len(outcome.tokens)
        ends_at = replica.begin(now)
    return tokens


@pytest.mark.parametrize("seed", range(5))
def test_first_and_last_tokens_come_when_the_real_scheduler_has_them(seed):
    dice, at = random.Random(seed), 0.0
    sent = []
    for _ in range(40):
        at += dice.expovariate(2.0)
        sent.append((at, dice.randint(1, 200), dice.randint(1, 30)))
    one, other = played(quick(), sent), played(real(), sent)
    for handle, (_, _, output) in enumerate(sent):
        assert len(one[handle]) == len(other[handle]) == output
        assert one[handle][0] == pytest.approx(other[handle][0])
        assert one[handle][-1] == pytest.approx(other[handle][-1])


def test_steps_that_only_decode_are_one_run_and_a_newcomer_ends_it():
    replica = quick()
    replica.submit(0, 1, request(10, 21))
    now = replica.begin(0.0)
    replica.end()
    whole = replica.begin(now)
    assert whole > now + 20 * EXACT.base_s
    replica.submit(0, 2, request(10, 1))
    cut = replica.cut(now + 3.5 * EXACT.base_s)
    assert now + 3 * EXACT.base_s < cut < now + 6 * EXACT.base_s
    assert replica.cut(cut) is None
    [news] = replica.end()
    assert news.key.handle == 1 and len(news.tokens) == 4
    assert replica.load.running == 2


def test_what_is_handed_over_goes_on_after_what_it_has():
    replica = quick()
    for handle in range(6):  # two of them wait
        replica.submit(0, handle, request(20, 10))
    now = replica.begin(0.0)
    had = dict.fromkeys(range(6), 0)
    for outcome in replica.end():
        had[outcome.key.handle] += len(outcome.tokens)
    now = replica.begin(now)
    for outcome in replica.end():
        had[outcome.key.handle] += len(outcome.tokens)
    assert replica.drain().draining
    handed = replica.hand_over()
    assert {each.finish for each in handed} == {FinishReason.HANDED_OVER}
    assert [each.key.handle for each in handed] == [h for h in range(6) if had[h] < 10]
    assert replica.begin(now) is None
    other = quick()
    other.submit(0, 0, request(20, 10), (7,) * 4)
    assert len(all_of(other)[0]) == 6


def all_of(replica: FleetReplica) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    now = replica.begin(0.0)
    while now is not None:
        for outcome in replica.end():
            found.setdefault(outcome.key.handle, []).extend(outcome.tokens)
        now = replica.begin(now)
    return found


def test_who_is_taken_back_yields_nothing_more():
    woken: list[FleetReplica] = []
    replica = quick(woken=woken.append)
    replica.submit(0, 1, request(10, 5))
    replica.submit(0, 2, request(10, 5))
    replica.cancel(0, 1)
    assert woken == [replica] * 3
    assert list(all_of(replica)) == [2]
    assert replica.load.running == replica.load.waiting == 0


def test_reports_grow_and_count_all_that_was_computed():
    replica, loads = quick(), []
    for handle in range(3):
        replica.submit(0, handle, request(30, 5))
    now = replica.begin(0.0)
    while now is not None:
        replica.end()
        loads.append(replica.load)
        now = replica.begin(now)
    assert all(one.stamp < other.stamp and one.step < other.step for one, other in pairwise(loads))
    assert loads[-1].tokens_generated == 15
    assert loads[-1].tokens_computed == 3 * (30 + 4)  # nobody computes the last token


def test_blocks_are_reserved_for_the_greatest_length():
    tight = Machine(seats=4, token_budget=64, blocks=8, block_size=16, noise=0.0)
    replica = quick(tight)
    for handle in range(3):
        replica.submit(0, handle, request(40, 24))  # 64 tokens, 4 blocks
    replica.begin(0.0)
    replica.end()
    assert (replica.load.running, replica.load.waiting, replica.load.blocks_used) == (2, 1, 8)
    assert sum(len(tokens) for tokens in all_of_rest(replica).values()) > 0


def all_of_rest(replica: FleetReplica) -> dict[int, list[Outcome]]:
    found: dict[int, list[Outcome]] = {}
    now = replica.begin(1.0)
    while now is not None:
        for outcome in replica.end():
            found.setdefault(outcome.key.handle, []).append(outcome)
        now = replica.begin(now)
    return found
