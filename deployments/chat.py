"""``chairlift chat``: talk to a running server from a terminal.

Owns the conversation and its commands; the server is any with an OpenAI-style API. Where stdin is
no terminal each of its lines is one question, and nothing but the answers is printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chairlift.client import BadAnswer, Client, ClientError, NotConnected
from chairlift.client.calls import ChatOptions
from chairlift.cluster.config import client_key
from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.target_server import Server, add_server_flags, named_server

__all__ = ["Chat", "add_arguments", "printable", "run"]

_HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /quit ends"

# C0 without tab and newline, DEL, C1: what could move the cursor or reprogram the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift chat``."""
    parser.description = f"Talk to a running server. {_HELP}; Ctrl-C stops an answer."
    add_server_flags(parser)
    parser.add_argument("--model", help="default: the first one that the server offers")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of one answer at most")


def run(arguments: argparse.Namespace) -> int:
    """Talk until the input ends.

    Returns:
        0, or 1 when the server cannot be used, or, without a terminal, when an answer failed.

    Raises:
        ConfigError: the flags name no server, or the key is none.
    """
    server = named_server(arguments)
    try:
        client = Client(server.root, client_key(), tls=server.tls)
    except ValueError as error:
        raise ConfigError(f"CHAIRLIFT_API_KEY: {error}") from None
    with client:
        return _talk(client, server, arguments)


def _talk(client: Client, server: Server, arguments: argparse.Namespace) -> int:
    try:
        model = arguments.model or _first_model(client)
    except ClientError as error:
        print(f"chairlift chat: {_unusable(server, error)}", file=sys.stderr)
        return 1
    options = ChatOptions(
        model=model, temperature=arguments.temperature, max_tokens=arguments.max_tokens
    )
    chat = Chat(client, options, arguments.system, _write)
    if not sys.stdin.isatty():
        return _answer_lines(chat)
    print(f"{printable(model)} at {server.base}. {_HELP}.")
    for line in _typed_lines():
        if not _take(chat, line):
            break
    return 0


@dataclass(slots=True)
class Chat:
    """One conversation.

    Attributes:
        client: of the server that answers.
        options: of every request.
        system: the system prompt, if there is one.
        write: shows a piece of an answer; control characters are already taken out.
        turns: what was said so far, as the API's messages.
    """

    client: Client
    options: ChatOptions
    system: str | None
    write: Callable[[str], None]
    turns: list[dict[str, str]] = field(default_factory=list)

    def answer(self, question: str) -> None:
        """Ask, and show the answer as it comes.

        A question that gets an answer, also a part of one, becomes part of the conversation.

        Raises ClientError: the server refused, its answer broke off, or the connection failed.
        """
        pieces: list[str] = []
        turn = {"role": "user", "content": question}
        try:
            self._stream(turn, pieces)
        finally:
            if pieces:
                self.turns += [turn, {"role": "assistant", "content": "".join(pieces)}]

    def _stream(self, turn: dict[str, str], pieces: list[str]) -> None:
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.turns, turn]
        with self.client.stream_chat(messages, **self.options) as deltas:
            for delta in deltas:
                pieces.append(delta.text)
                self.write(printable(delta.text))


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
                chat.answer(line)
            except KeyboardInterrupt:
                print(" …")
            except ClientError as error:
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
            chat.answer(line.strip())
        except ClientError as error:
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


def _first_model(client: Client) -> str:
    models = client.models()
    if not models:
        raise BadAnswer("it offers no model")
    return models[0].id


def _unusable(server: Server, error: ClientError) -> str:
    if isinstance(error, NotConnected):
        return (
            f"no server at {server.base} ({_fault(error)}); start one with chairlift serve, or "
            "give --url"
        )
    return f"{server.base} is no use: {_fault(error)}"


def _fault(error: ClientError) -> str:
    return printable(" ".join(error.message.split()))
