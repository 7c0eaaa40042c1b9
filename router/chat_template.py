"""A model's chat template: messages in, prompt text out.

Owns finding, compiling and running the Jinja template that comes with a model. The template is
somebody else's program, so it runs in a sandbox (``router.template_sandbox``) and cannot change
what it is given. It knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser

from chairlift.cluster.errors import InvalidRequest, ModelError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.router.template_sandbox import BoundedEnvironment
from chairlift.router.tokenizer import Tokenizer, read_json

__all__ = ["ChatTemplate"]

MAX_SOURCE = 256 * 1024
"""Characters of a template; those of models have some tens of thousands at most."""


class ChatTemplate:
    """One compiled template; stateless, so threads may share it.

    Attributes:
        source: as the model has it.
    """

    __slots__ = ("_environment", "_knows_developer", "_template", "_tokens", "source")

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile.

        Args:
            source: the template, in Jinja, for the environment that Hugging Face defined.
            bos_token: what the variable of this name holds; None is empty text.
            eos_token: likewise.
            now: the clock behind ``strftime_now``.

        Raises:
            ModelError: the template is not valid Jinja.
        """
        environment = BoundedEnvironment(["jinja2.ext.loopcontrols", _Generation])
        environment.add_filter("tojson", _to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._template = _compiled(environment, source)
        self._environment = environment
        self._knows_developer = "developer" in source
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a Hugging Face folder or GGUF file; None if the model has none.

        Raises:
            ModelError: a file cannot be read, or the template is not valid Jinja.
        """
        source = _from_folder(path) if path.is_dir() else _from_gguf(path)
        if source is None:
            return None
        return cls(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt, with the special tokens written out.

        Args:
            messages: as OpenAI has them, but the arguments of tool calls are objects. A developer's
                is the system's to templates older than that role.
            add_generation_prompt: end with the begin of the assistant's answer.
            tools: what the model may call.

        Raises:
            InvalidRequest: the template refuses these messages, cannot handle them, or goes beyond
                the sandbox's bounds.
        """
        try:
            return self._environment.rendered(
                self._template,
                {
                    "messages": [self._known(message) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                    "tools": tools,
                    "documents": None,
                    **self._tokens,
                },
            )
        except Exception as error:  # whatever a foreign program may raise
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {error}",
                param="messages",
            ) from error

    def _known(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "developer" and not self._knows_developer:
            return {**message, "role": "system"}
        return message


def _compiled(environment: jinja2.Environment, source: str) -> jinja2.Template:
    """Raises ModelError for what Jinja, or Python after it, does not take."""
    if len(source) > MAX_SOURCE:
        raise ModelError(f"the model's chat template is longer than {MAX_SOURCE} characters")
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the model's chat template is wrong in line {error.lineno}: {error.message}"
        ) from None
    except (RecursionError, MemoryError):
        raise ModelError("the model's chat template is nested too deeply") from None
    except (SyntaxError, ArithmeticError, ValueError) as error:
        raise ModelError(
            f"the model's chat template cannot be compiled: {_one_line(error)}"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Generation(Extension):
    """``{% generation %}``: marks what training learns from; here its content is just output."""

    tags = {"generation"}  # noqa: RUF012 (so declared by the base class)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no HTML escapes, letters of all scripts as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _from_gguf(path: Path) -> str | None:
    return _text_or_none(GgufFile.open(path).metadata.get("tokenizer.chat_template"))


def _from_folder(folder: Path) -> str | None:
    """Its own file comes before the entry in ``tokenizer_config.json``, which may be a list."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    found = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict)]
        found = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return _text_or_none(found)


def _text_or_none(found: object) -> str | None:
    return found if isinstance(found, str) and found else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{file} is not UTF-8 text") from None
