"""Twenty prompts on which two ways of computing the same model are compared.

Owns texts of every sort that tends to go wrong: chats, code, scripts, white space, and one of
thousands of tokens. Written for the embedded model, whose chat markers they use.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["prompts"]

_STORY = (
    "In the year {0}, keeper number {0} of the lighthouse wrote: the wind was {1} knots, "
    "{2} ships passed, and the lamp burned {3} pints of oil. Nothing else happened.\n"
)


def prompts() -> Mapping[str, str]:
    """By what is special about each; the last one is longer than 3,000 tokens."""
    return {
        "a word": "The",
        "a fact": "The capital of France is",
        "a list": "Monday, Tuesday, Wednesday,",
        "a question": _chat("Why is the sky blue?"),
        "a system prompt": _chat("Write a haiku about rivers.", "You are a poet."),
        "an empty system prompt": _chat("What is 17 + 25?", ""),
        "an empty question": _chat(""),
        "two turns": _chat("Hi!") + "Hello! How can I help?<|im_end|>\n" + _chat("Tell me a joke."),
        "code": _chat("Write a Python function that reverses a linked list."),
        "a program": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
        "json": '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "known_for":',
        "accents": _chat("Décrivez un café à Orléans où l'on mange des crêpes à la crème brûlée."),
        "german": "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist",
        "chinese": _chat("请用中文介绍一下长城。"),
        "japanese": "吾輩は猫である。名前はまだ無い。",
        "arabic": "مرحبا بالعالم، كيف حالك اليوم؟",
        "emoji": _chat("Explain these: 🎿🚡🏔️ 👩‍🚀 🇫🇷"),
        "numbers": "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89,",
        "white space": "\n\n\t  x   =    1\n\n\n\t\ty\t=\t2   \n",
        "3,000 tokens": "".join(
            _STORY.format(1800 + i, i % 60, i * 7 % 31, i % 9) for i in range(120)
        ),
    }


def _chat(user: str, system: str | None = None) -> str:
    start = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{start}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
