"""A tokenizer without files: a token is a byte of UTF-8."""

from collections.abc import Sequence
from functools import cached_property

from chairlift.router.token_text import WholeTexts

BOS = 256


class FakeTokenizer:
    """Implements ``Tokenizer``; encoding with special tokens puts ``BOS`` before the text."""

    vocab_size = 257
    bos_token = ""
    eos_token = ""
    strips_space = False

    @cached_property
    def whole_texts(self) -> WholeTexts:
        return WholeTexts(self.token_bytes)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes:
        return bytes([id_]) if id_ < BOS else b""

    def entry(self, id_: int) -> str:
        return "<bos>" if id_ == BOS else f"<{id_:02x}>"

    def is_special(self, id_: int) -> bool:
        return id_ == BOS
