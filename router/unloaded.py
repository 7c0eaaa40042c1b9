"""How long a request would take with nobody else there, learnt from the luckiest ones.

Owns the least that was ever seen of three things: seconds to a first token, seconds to it for each
prompt token that had to be computed, and seconds for each output token after the first. Pure.

    unloaded = max(least first token, least per prompt token × prompt tokens)
               + least per output token × (output tokens − 1)

No request beats an estimate that has learnt from it, so a slowdown is 1 at least. A router that
was never idle knows no better than its best moments, and its slowdowns are too small by that.
"""

from __future__ import annotations

import math

__all__ = ["Unloaded"]

TEACHES_TOKENS = 8
"""Of shorter outputs the time is mostly that of how tokens happened to be delivered."""


class Unloaded:
    """Learns from each request that finished, and compares it with the best ones."""

    def __init__(self) -> None:
        self._first_s = math.inf
        self._per_prompt_s = math.inf
        self._per_output_s = math.inf

    def slowdown(
        self, prompt_tokens: int, output_tokens: int, first_token_s: float, duration_s: float
    ) -> float:
        """Its duration over the unloaded one, ≥ 1.

        Args:
            prompt_tokens: that had to be computed.
            output_tokens: of its longest choice.
            first_token_s: from its start to its first token.
            duration_s: from its start to its end.
        """
        prompt, gaps = max(prompt_tokens, 1), max(output_tokens - 1, 0)
        decoding_s = max(duration_s - first_token_s, 0.0)
        self._first_s = min(self._first_s, first_token_s)
        self._per_prompt_s = min(self._per_prompt_s, first_token_s / prompt)
        if output_tokens >= TEACHES_TOKENS:
            self._per_output_s = min(self._per_output_s, decoding_s / gaps)
        # As long as no output was long enough to tell, each is as fast as it can be.
        per_output_s = self._per_output_s if math.isfinite(self._per_output_s) else None
        unloaded_s = max(self._first_s, self._per_prompt_s * prompt)
        unloaded_s += decoding_s if per_output_s is None else per_output_s * gaps
        return max(1.0, duration_s / unloaded_s) if unloaded_s > 0.0 else 1.0
