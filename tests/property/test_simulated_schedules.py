"""A simulated sequence says the same, whatever runs beside it and wherever it goes on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import Controls, FinishReason, Request, SamplingParams, Submission
from chairlift.workers.sequence import SequenceKey
from chairlift.workers.simulated_runner import SimulatedRunner, simulated_token
from support.engines import Rig, replica_info

VOCAB_SIZE, EOS = 20, (3, 4)

requests = st.builds(
    lambda prompt, max_tokens, seed: Request(
        "r", tuple(prompt), SamplingParams(max_tokens=max_tokens, seed=seed)
    ),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    max_tokens=st.integers(1, 10),
    seed=st.integers(0, 2),
)


def rule(request: Request) -> tuple[int, ...]:
    tokens = list(request.prompt)
    for _ in range(request.sampling.max_tokens):
        tokens.append(simulated_token(tokens, request.sampling.seed, 0, VOCAB_SIZE, EOS))
    return tuple(tokens[len(request.prompt) :])


def rig(token_budget: int, blocks: int) -> Rig:
    info = replica_info(
        vocab_size=VOCAB_SIZE,
        max_sequence_tokens=24,
        max_waiting=100,
        block_size=2,
        blocks_total=blocks,
    )
    return Rig(
        Controls(max_sequences=4, token_budget=token_budget),
        info=info,
        eos=EOS,
        runner=SimulatedRunner(VOCAB_SIZE, EOS, 0.0),
    )


@settings(max_examples=150, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=8),
    token_budget=st.integers(1, 16),
    blocks=st.integers(12, 40),
    steps=st.integers(0, 40),
)
def test_two_engines_in_turn_say_what_the_rule_says(asked, token_budget, blocks, steps):
    first, second = rig(token_budget, blocks), rig(token_budget, blocks)
    for handle, request in enumerate(asked):
        assert first.intake.submit(0, Submission(handle, request)).refusal is None
    for _ in range(steps):
        first.engine.step()
    first.engine.hand_over()
    first.run_until_idle()
    for handle, request in enumerate(asked):
        tokens, ending = first.answer(SequenceKey(0, handle))
        assert tokens == rule(request)[: len(tokens)]
        if ending is FinishReason.HANDED_OVER:
            going_on = Submission(handle, request, output=tokens)
            assert second.intake.submit(0, going_on).refusal is None
        else:
            assert len(tokens) == request.sampling.max_tokens
    second.run_until_idle()
    for key in second.heard:
        request = asked[key.handle]
        tokens = first.answer(key)[0] + second.answer(key)[0]
        assert tokens == rule(request)
