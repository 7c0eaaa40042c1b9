"""Whatever comes, in whatever order, the engine keeps its promises."""

from collections import defaultdict
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.cluster.protocol import (
    Batching,
    Controls,
    FinishReason,
    Priority,
    Refusal,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.sequence import Sequence, SequenceKey, StepPlan
from support.engines import Rig, TwoRanksRig, alone, replica_info

VOCAB_SIZE = 40  # small, so that end tokens are common
EOS = (38, 39)
ORIGINS = 3


@dataclass
class Asked:
    """What the test knows of an accepted sequence, which came with ``known`` tokens of output."""

    request: Request
    choice: int
    known: int = 0
    cancelled: bool = False
    left: bool = False
    failed: bool = False
    ended: bool = False

    @property
    def most_steps(self) -> int:
        """Steps that it can hold up others: its prompt token by token, its output, admission."""
        return len(self.request.prompt) + 2 * self.request.sampling.max_tokens + 2


controls = st.builds(
    Controls,
    version=st.just(0),
    batching=st.sampled_from([Batching.CONTINUOUS, *Batching]),
    token_budget=st.integers(1, 12),
    max_sequences=st.integers(1, 5),
    fair=st.booleans(),
)
# Half of the prompts begin alike.
starts = st.integers(1, 6).map(lambda length: (5, 6, 7, 5, 6, 7)[:length])
tails = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=7).map(tuple)
prompts = tails | st.builds(lambda start, tail: (start + tail)[:7], starts, tails)
requests = st.builds(
    Request,
    id=st.just("r"),
    prompt=prompts | prompts | prompts | st.just((3, VOCAB_SIZE)),
    sampling=st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 10),
        seed=st.integers(0, 3),
        stop_token_ids=st.sampled_from([(), (), (2,)]),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
    ),
    n=st.sampled_from([1, 1, 2, 3]),
    cache_salt=st.sampled_from(["", "", "salt"]),
    tenant=st.sampled_from("abc"),
    priority=st.sampled_from([*Priority, Priority.STANDARD]),
    weight=st.sampled_from([1.0, 1.0, 3.0]),
)
recent_handles = st.lists(st.integers(0, 9), min_size=1, max_size=3)
origins = st.integers(0, ORIGINS - 1)


def answer_of(request: Request, choice: int) -> tuple[tuple[int, ...], FinishReason]:
    """What a choice gives alone and undisturbed."""
    return alone(request.prompt, request.sampling, choice, eos=EOS, vocab_size=VOCAB_SIZE)


class EngineMachine(RuleBasedStateMachine):
    rig_type = Rig

    @initialize(
        controls=controls,
        block_size=st.integers(1, 4),
        capacity=st.integers(12, 30),
        max_waiting=st.integers(0, 16),
        prefix_cache=st.sampled_from([True, True, False]),
        hands_over=st.sampled_from([False, False, True]),
    )
    def build(
        self,
        controls: Controls,
        block_size: int,
        capacity: int,
        max_waiting: int,
        prefix_cache: bool,
        hands_over: bool,
    ) -> None:
        num_blocks = capacity // block_size
        info = replica_info(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=min(14, block_size * num_blocks),
            max_sequences=5,
            max_waiting=max_waiting,
            block_size=block_size,
            blocks_total=num_blocks,
        )
        self.rig = self.rig_type(controls, info=info, eos=EOS, prefix_cache=prefix_cache)
        self.rig.during_advance = self.during_advance
        self.asked: dict[SequenceKey, Asked] = {}
        self.origins = list(range(ORIGINS))
        self.next_handle = 0
        self.version = 0
        self.broken: AssertionError | None = None
        self.first: Sequence | None = None
        self.meanwhile = []
        self.heard_outputs = 0
        self.hands_over = hands_over

    # What the outside may do, between steps or during one.

    def submit(self, origin: int, request: Request) -> None:
        info, intake = self.rig.info, self.rig.intake
        origin, handle = self.origins[origin], self.next_handle
        room = info.max_sequences + info.max_waiting - intake.num_open
        answer = intake.submit(origin, Submission(handle, request))
        if max(request.prompt) >= VOCAB_SIZE:
            assert answer.refusal is Refusal.INVALID
        elif len(request.prompt) + request.sampling.max_tokens > info.max_sequence_tokens:
            assert answer.refusal is Refusal.TOO_LONG
        elif request.n > room:
            assert answer.refusal is Refusal.QUEUE_FULL
        else:
            assert answer.refusal is None
            for choice in range(request.n):
                self.asked[SequenceKey(origin, handle + choice)] = Asked(request, choice)
            self.next_handle += request.n

    def submit_rest(self, origin: int, request: Request, choice: int, known: int) -> None:
        """One choice that has ``known`` tokens of its output already, or all but the last."""
        request = replace(request, n=1)
        answer, _ = answer_of(request, choice)
        output = answer[: min(known, len(answer) - 1)]
        origin, handle = self.origins[origin], self.next_handle
        submission = Submission(handle, request, choice, output)
        if self.rig.intake.submit(origin, submission).refusal is None:
            self.asked[SequenceKey(origin, handle)] = Asked(request, choice, len(output))
            self.next_handle += 1

    def cancel(self, origin: int, handles: list[int]) -> None:
        """Counted back from the newest handle, so that most hit something."""
        handles = [self.next_handle - 1 - handle for handle in handles]
        self.rig.intake.cancel(self.origins[origin], handles)
        for handle in handles:
            asked = self.asked.get(SequenceKey(self.origins[origin], handle))
            if asked is not None and not asked.ended:
                asked.cancelled = True

    def cancel_planned(self, position: int) -> None:
        """Of the last plan, which is the one under way if there is one."""
        if self.rig.plans:
            slices = self.rig.plans[-1].slices
            key = slices[position % len(slices)].sequence.key
            self.rig.intake.cancel(key.origin, [key.handle])
            self.asked[key].cancelled |= not self.asked[key].ended

    def leave(self, origin: int) -> None:
        self.rig.intake.leave(self.origins[origin])
        for key, asked in self.asked.items():
            if key.origin == self.origins[origin]:
                asked.left = True
        self.origins[origin] = max(self.origins) + 1

    def set_controls(self, controls: Controls) -> None:
        self.version += 1
        self.rig.intake.set_controls(replace(controls, version=self.version))

    def fail(self) -> None:
        for piece in self.rig.plans[-1].slices:
            asked = self.asked[piece.sequence.key]
            asked.failed = not asked.cancelled
        raise RuntimeError("injected")

    events = st.one_of(
        *[st.tuples(st.just(submit), origins, requests)] * 5,
        st.tuples(st.just(submit_rest), origins, requests, st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just(cancel), origins, recent_handles),
        st.tuples(st.just(cancel_planned), st.integers(0, 4)),
        st.tuples(st.just(set_controls), controls),
        st.tuples(st.just(leave), st.just(0)),
    )

    @rule(happening=st.lists(events, min_size=1, max_size=4))
    def between_steps(self, happening) -> None:
        for action, *arguments in happening:
            action(self, *arguments)

    @rule(origin=origins, burst=st.lists(requests, min_size=3, max_size=8))
    def rush(self, origin: int, burst: list[Request]) -> None:
        for request in burst:
            self.submit(origin, request)

    @rule(meanwhile=st.lists(events, max_size=2), fails=st.sampled_from([False] * 9 + [True]))
    def eventful_step(self, meanwhile, fails: bool) -> None:
        self.meanwhile = [*meanwhile, (EngineMachine.fail,)] if fails else meanwhile
        self.step()
        self.meanwhile = []

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    # What the engine must keep to.

    def during_advance(self, plan: StepPlan) -> None:
        try:
            assert 0 < plan.num_tokens <= self.rig.scheduler.controls.token_budget
            assert self.first in (None, self.rig.scheduler.running[0]), "the first had to yield"
            self.check_turned_down(plan)
            for action, *arguments in self.meanwhile:
                action(self, *arguments)
        except AssertionError as error:  # the engine would take it for a failure of the runner
            self.broken = error

    def check_turned_down(self, plan: StepPlan) -> None:
        """Who holds a seat runs or is counted among the turned down; who lost it likewise."""
        assert len({each.reason for each in plan.turned_down}) == len(plan.turned_down)
        passed_over = len(self.rig.scheduler.running) + len(plan.preempted) - len(plan.slices)
        assert sum(each.count for each in plan.turned_down) == passed_over

    def step(self) -> bool:
        scheduler = self.rig.scheduler
        seated = len(scheduler.running)
        staying = (each for each in scheduler.running if not self.is_doomed(each))
        self.first = next(staying, None)
        busy = self.rig.engine.step()
        if self.broken is not None:
            raise self.broken
        assert len(scheduler.running) <= max(seated, scheduler.controls.max_sequences)
        for output in self.rig.outputs[self.heard_outputs :]:
            self.check_output(output)
        self.heard_outputs = len(self.rig.outputs)
        return busy

    def is_doomed(self, sequence: Sequence) -> bool:
        asked = self.asked[sequence.key]
        return asked.cancelled or asked.left

    def check_output(self, output) -> None:
        for origin, deltas in output.deltas.items():
            for delta in deltas:
                asked = self.asked[SequenceKey(origin, delta.handle)]
                assert not asked.left
                if asked.cancelled:
                    assert (delta.tokens, delta.finish) == ((), FinishReason.CANCELLED)
                asked.ended = delta.finish is not None

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.rig.scheduler.check_integrity()

    @invariant()
    def no_sequence_is_lost_or_counted_twice(self) -> None:
        still_open = {k for k, a in self.asked.items() if not (a.ended or a.left)}
        assert set(self.rig.intake.open_keys()) == still_open

    @invariant()
    def who_ran_before_goes_before_others_of_its_tenant_and_class(self) -> None:
        lines = defaultdict(list)
        for each in self.rig.scheduler.waiting:
            lines[each.priority, each.tenant].append(not each.resumes)
        assert all(line == sorted(line) for line in lines.values())

    @invariant()
    def a_class_goes_before_those_below_it(self) -> None:
        for line in (self.rig.scheduler.running, self.rig.scheduler.waiting):
            classes = [each.priority for each in line]
            assert classes == sorted(classes)

    @precondition(lambda self: self.rig.engine.load.running == 0)
    @invariant()
    def nothing_is_held_by_nobody(self) -> None:
        assert self.rig.engine.load.blocks_used == 0

    def teardown(self) -> None:
        if not hasattr(self, "asked"):
            return
        if self.hands_over:
            self.hand_over()
            return
        # The first in line advances in every step, and loses what it did to higher classes only.
        left = [asked for asked in self.asked.values() if not asked.ended]
        bound = sum(asked.most_steps for asked in left)
        for priority in Priority:
            above = sum(asked.request.priority < priority for asked in left)
            own = sum(a.most_steps for a in left if a.request.priority == priority)
            bound += above * own
        for _ in range(bound + 2):
            if not self.step():
                break
        else:
            raise AssertionError(f"somebody starves: still busy after {bound} steps")
        assert self.rig.intake.num_open == self.rig.scheduler.num_open == 0
        assert self.rig.engine.load.blocks_used == 0
        for key, asked in self.asked.items():
            self.check_answer(key, asked)

    def hand_over(self) -> None:
        """Everything that is open ends within one turn, after the tokens of the step under way."""
        told = len(self.rig.outputs)
        due = {k for k, asked in self.asked.items() if not (asked.ended or asked.left)}
        doomed = {key for key in due if self.asked[key].cancelled}
        self.meanwhile = [(lambda _: self.rig.engine.hand_over(),)]
        self.step()
        self.rig.engine.hand_over()
        self.step()
        assert self.rig.intake.num_open == self.rig.scheduler.num_open == 0
        assert self.rig.engine.load.blocks_used == 0
        assert self.rig.engine.step() is False
        for key in due:
            answer, finish = answer_of(self.asked[key].request, self.asked[key].choice)
            tokens, ending = self.rig.answer(key)
            expected = answer[self.asked[key].known :]
            assert tokens == expected[: len(tokens)]
            if key in doomed:
                assert ending is FinishReason.CANCELLED
            elif ending is not FinishReason.HANDED_OVER:
                assert (tokens, ending) == (expected, finish)
        assert len(self.rig.outputs) - told <= 2

    def check_answer(self, key: SequenceKey, asked: Asked) -> None:
        """One ending, the right one, and the tokens that it gives alone."""
        heard = self.rig.heard.get(key)
        tokens = tuple(heard.tokens) if heard else ()
        answer, finish = answer_of(asked.request, asked.choice)
        expected = answer[asked.known :]
        assert tokens == expected[: len(tokens)]
        if asked.ended:
            assert self.rig.answer(key)[1] is (
                FinishReason.CANCELLED
                if asked.cancelled
                else FinishReason.FAILED
                if asked.failed
                else finish
            )
            assert asked.cancelled or asked.failed or tokens == expected
        else:
            assert asked.left and not (heard and heard.endings)


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)


class TwoRanksMachine(EngineMachine):
    """The same, and in every step the other rank comes to the same as rank 0."""

    rig_type = TwoRanksRig


TestEngineOfTwoRanks = TwoRanksMachine.TestCase
TestEngineOfTwoRanks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
