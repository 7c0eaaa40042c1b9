"""A model without weights that tells log probabilities too."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.sequence import Runner, StepPlan, StepResult


class ScoredFake:
    """A fake model with log probabilities, which are made to depend on the company if asked."""

    def __init__(self, *, company_matters: bool) -> None:
        self._fake: Runner = FakeRunner(1000, block_size=4)
        self._company_matters = company_matters

    def advance(self, plan: StepPlan) -> StepResult:
        result = self._fake.advance(plan)
        sampling = [piece.sequence for piece in plan.slices if piece.samples]
        noise = 1e-7 * len(plan.slices) if self._company_matters else 0.0
        return replace(
            result,
            logprobs={
                i: TokenLogprobs(-float(token) - noise)
                for i, (token, sequence) in enumerate(zip(result.tokens, sampling, strict=True))
                if sequence.sampling.logprobs is not None
            },
            prompt_logprobs={
                i: tuple(
                    TokenLogprobs(-1.0, ((0, -0.5),))
                    for at in range(piece.start + 1, piece.start + piece.count + 1)
                    if at < piece.sequence.num_prompt
                )
                for i, piece in enumerate(plan.slices)
                if piece.sequence.sampling.prompt_logprobs is not None
                and not piece.sequence.num_output
            },
        )
