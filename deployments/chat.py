"""``chairlift chat``: talk to a running server from a terminal.

Owns the conversation and its commands; the server is any with an OpenAI-style API. Where stdin is
no terminal each of its lines is one question, and nothing but the answers is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import aiohttp

from chairlift.cluster.config import client_headers
from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.openai_stream import (
    ServerFault,
    api_base,
    first_model,
    one_line,
    read_error,
    stream_events,
    unusable,
)

__all__ = ["Chat", "add_arguments", "printable", "run"]

_HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /quit ends"

# C0 without tab and newline, DEL, C1: what could move the cursor or reprogram the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift chat``."""
    parser.description = f"Talk to a running server. {_HELP}; Ctrl-C stops an answer."
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--model", help="default: the first one that the server offers")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of one answer at most")


def run(arguments: argparse.Namespace) -> int:
    """Talk until the input ends.

    Returns:
        0, or 1 when the server cannot be used, or, without a terminal, when an answer failed.

    Raises:
        ConfigError: the address is none.
    """
    try:
        base = api_base(arguments.url)
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from None
    try:
        model = arguments.model or asyncio.run(_first_model(base))
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        print(f"chairlift chat: {printable(unusable(base, error))}", file=sys.stderr)
        return 1
    options = {
        name: value
        for name, value in (
            ("temperature", arguments.temperature),
            ("max_tokens", arguments.max_tokens),
        )
        if value is not None
    }
    chat = Chat(base=base, model=model, options=options, system=arguments.system, write=_write)
    if not sys.stdin.isatty():
        return _answer_lines(chat)
    print(f"{printable(model)} at {base}. {_HELP}.")
    for line in _typed_lines():
        if not _take(chat, line):
            break
    return 0


@dataclass(slots=True)
class Chat:
    """One conversation.

    Attributes:
        base: the server's address up to and including ``/v1``.
        options: further fields of every request.
        system: the system prompt, if there is one.
        write: shows a piece of an answer; control characters are already taken out.
        turns: what was said so far, as the API's messages.
    """

    base: str
    model: str
    options: dict[str, float | int]
    system: str | None
    write: Callable[[str], None]
    turns: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, question: str) -> None:
        """Ask, and show the answer as it comes.

        A question that gets an answer, also a part of one, becomes part of the conversation.

        Raises:
            ServerFault: the server refused, or its answer broke off.
            aiohttp.ClientError, OSError: the connection failed.
        """
        pieces: list[str] = []
        turn = {"role": "user", "content": question}
        try:
            await self._stream(turn, pieces)
        finally:
            if pieces:
                self.turns += [turn, {"role": "assistant", "content": "".join(pieces)}]

    async def _stream(self, turn: dict[str, str], pieces: list[str]) -> None:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "model": self.model,
            "messages": [*system, *self.turns, turn],
            "stream": True,
            **self.options,
        }
        # A new session each time: a kept connection may have gone while the user was thinking.
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), headers=client_headers()
            ) as session,
            session.post(f"{self.base}/chat/completions", json=body) as response,
        ):
            if response.status != 200:
                raise await read_error(response)
            async for event in stream_events(response):
                for choice in event.get("choices") or ():
                    if text := (choice.get("delta") or {}).get("content"):
                        pieces.append(text)
                        self.write(printable(text))


def printable(text: str) -> str:
    """The text without the control characters that a terminal would obey."""
    return _CONTROLS.sub("", text)


def _take(chat: Chat, line: str) -> bool:
    """Obey a command or get an answer; False when the conversation is over."""
    command, _, rest = line.strip().partition(" ")
    match command:
        case "":
            pass
        case "/quit":
            return False
        case "/reset":
            chat.turns.clear()
            print("The conversation is forgotten.")
        case "/system":
            chat.system = rest.strip() or None
            print("The system prompt is set." if chat.system else "There is no system prompt now.")
        case _ if command.startswith("/"):
            print(_HELP)
        case _:
            try:
                asyncio.run(chat.answer(line))
            except KeyboardInterrupt:
                print(" …")
            except (aiohttp.ClientError, OSError, ServerFault) as error:
                print(f"\n[{_fault(error)}]")
            else:
                print()
    return True


def _answer_lines(chat: Chat) -> int:
    """Answer each line of stdin; 1 as soon as one gets no whole answer."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            asyncio.run(chat.answer(line.strip()))
        except (aiohttp.ClientError, OSError, ServerFault) as error:
            print(f"chairlift chat: {_fault(error)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        print()
    return 0


def _typed_lines() -> Iterator[str]:
    """Lines from the terminal, until its end or Ctrl-C."""
    import readline  # noqa: F401  # gives input() its line editing and history

    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _first_model(base: str) -> str:
    async with aiohttp.ClientSession(headers=client_headers()) as session:
        return await first_model(session, base)


def _fault(error: Exception) -> str:
    return printable(one_line(error))
