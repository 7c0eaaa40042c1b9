"""Several choices, streamed: each whole, each with one end, and the sum as in one piece."""

import asyncio
from collections import Counter

import pytest
from openai import AsyncOpenAI

from support.chain import expected_text, running_chain
from support.fake_tokenizer import BOS
from support.http_app import MODEL

PROMPT = [BOS, *b"abc"]


@pytest.mark.parametrize("prompt", ["abc", PROMPT], ids=["text", "tokens"])
@pytest.mark.parametrize("stops", [False, True], ids=["to the end", "stopped"])
@pytest.mark.parametrize("n", [2, 8])
def test_every_choice_of_a_stream_is_whole_and_the_usage_is_the_sum(n, stops, prompt):
    texts = [expected_text(PROMPT, 20, seed=3, choice=choice) for choice in range(n)]
    stop = texts[0][7:9] if stops else None
    cut = [text.split(stop)[0] if stop else text for text in texts]

    async def main():
        async with running_chain() as chain:
            client = AsyncOpenAI(base_url=f"{chain.url}/v1", api_key="-", max_retries=0, timeout=30)
            async with client as official:
                arguments = {
                    **{"model": MODEL, "prompt": prompt, "max_tokens": 20, "seed": 3, "n": n},
                    **({"stop": stop} if stop else {}),
                }
                whole = await official.completions.create(**arguments)
                assert [choice.text for choice in whole.choices] == cut
                stream = await official.completions.create(
                    **arguments, stream=True, stream_options={"include_usage": True}
                )
                joined, ends = [""] * n, Counter[int]()
                async for chunk in stream:
                    for choice in chunk.choices:
                        joined[choice.index] += choice.text
                        ends[choice.index] += choice.finish_reason is not None
                assert joined == cut
                assert ends == dict.fromkeys(range(n), 1)
                assert chunk.choices == []
                sums = [
                    (each.usage.prompt_tokens, each.usage.completion_tokens)
                    for each in (whole, chunk)
                ]
                assert sums[0] == sums[1]
                if not stops:
                    assert sums[0] == (len(PROMPT), 20 * n)
            await chain.until_idle()

    asyncio.run(main())
