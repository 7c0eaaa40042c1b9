"""Text to token ids and back, for a Hugging Face folder or a GGUF file.

Owns the loaded vocabulary, which never changes, so threads may share it. How text becomes tokens
is the business of the ``tokenizers`` library. Streams are decoded in ``router.detokenizer``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from chairlift.cluster.errors import InvalidRequest, ModelError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.vocabulary import Vocabulary
from chairlift.router.spelling import Speller
from chairlift.router.token_text import WholeTexts, read_decoder
from chairlift.router.tokenizer_gguf import GgufVocabulary, build_tokenizer

__all__ = ["Tokenizer", "read_json"]


class Tokenizer:
    """One model's vocabulary.

    Special tokens are recognised wherever their text stands: in the output of a chat template,
    and just as well in what a user typed. A user who writes ``<|im_end|>`` ends the turn, as on
    most servers.

    Attributes:
        vocab_size: every id is below it.
        bos_token, eos_token: begin and end of a text, as chat templates write them.
        strips_space: whether a space at the begin of a decoded text is dropped, because encoding
            puts one there.
        whole_texts: what tokens add to a text, where that is whole characters.
    """

    __slots__ = (
        "_backend",
        "_special",
        "_text",
        "_verbatim",
        "bos_token",
        "eos_token",
        "strips_space",
        "vocab_size",
        "whole_texts",
    )

    def __init__(
        self, backend: tokenizers.Tokenizer, *, bos_token: str | None, eos_token: str | None
    ) -> None:
        """Wrap a tokenizer of the library, which must not change from now on.

        Raises:
            ModelError: its decoder is of a kind that cannot be followed token by token.
        """
        if backend.decoder is None:
            raise ModelError("the tokenizer has no decoder, so its tokens cannot become text")
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._text = read_decoder(json.loads(backend.decoder.__getstate__()))
        self._special = frozenset(id_ for id_, token in added.items() if token.special)
        # Added tokens are not spelt in letters for bytes, even where they look like it ("é").
        self._verbatim = frozenset(added if self._text.byte_level else ())
        self.strips_space = self._text.strips_space
        self.vocab_size = max([backend.get_vocab_size(with_added_tokens=False) - 1, *added]) + 1
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.whole_texts = WholeTexts(self.token_bytes)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a Hugging Face folder with a ``tokenizer.json``, or a GGUF file.

        Raises:
            ModelError: it is missing, damaged, or of an unsupported kind.
        """
        if path.is_dir():
            bos, eos = (_named_token(path, name) for name in ("bos_token", "eos_token"))
            return cls(_read_backend(path / "tokenizer.json"), bos_token=bos, eos_token=eos)
        vocabulary = GgufVocabulary.read(GgufFile.open(path).metadata)
        backend = build_tokenizer(vocabulary)
        return cls(backend, bos_token=vocabulary.bos, eos_token=vocabulary.eos)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """The token ids.

        Blocks for about a second per megabyte, but leaves other threads the interpreter.

        Args:
            text: any length.
            add_special: put begin and end tokens around it if the model wants them; False for
                the output of a chat template, which has them.

        Raises:
            InvalidRequest: the text holds half a surrogate pair, which is no character.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special).ids
        except TypeError:  # how the library says that the text has no UTF-8 form
            raise InvalidRequest("the text holds half a surrogate pair") from None

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text; ids outside the vocabulary have none.

        U+FFFD stands for bytes that are no UTF-8, one for each longest beginning of a character,
        as Unicode recommends. (The library does so for byte-level vocabularies only; for
        SentencePiece-style ones it gives up all neighbouring byte tokens, whole characters too.)
        """
        text = b"".join(self.token_bytes(id_, skip_special=skip_special) for id_ in ids)
        decoded = text.decode("utf-8", "replace")
        return decoded.removeprefix(" ") if self.strips_space else decoded

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes:
        """What one token adds to the text: any part of a character, or nothing."""
        if skip_special and id_ in self._special:
            return b""
        entry = self._backend.id_to_token(id_)
        if entry is None:
            return b""
        return entry.encode() if id_ in self._verbatim else self._text.to_bytes(entry)

    def vocabulary(self) -> Vocabulary:
        """Every token as bytes, and how a text is spelt that stands behind another."""
        tokens = tuple(self.token_bytes(id_, skip_special=False) for id_ in range(self.vocab_size))
        encode = partial(self.encode, add_special=False)
        return Vocabulary(tokens, self._special, Speller(encode, tokens, self._special).spell)

    def entry(self, id_: int) -> str:
        """How the vocabulary spells one token; empty outside it."""
        return self._backend.id_to_token(id_) or ""

    def is_special(self, id_: int) -> bool:
        """Whether the token is a mark for the model, not text."""
        return id_ in self._special


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        ModelError: it cannot be read, or is no JSON object.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelError(
            f"{path} is missing; Chairlift needs it to read a model folder's tokenizer"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"{path} cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _named_token(folder: Path, name: str) -> str | None:
    """A special token's text; the files have it as a string or as an object."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder / file).get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            return content
    return None
