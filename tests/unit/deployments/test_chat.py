from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from aiohttp import web

from chairlift.client import Client, Interrupted, Unavailable
from chairlift.client.calls import ChatOptions
from chairlift.cluster.errors import ConfigError
from chairlift.deployments import chat
from chairlift.deployments.chat import Chat, printable
from support.openai_server import ScriptedServer, serving, sse, tokens


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def echo_server() -> ScriptedServer:
    """Answers with the number of messages and the last one."""

    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        messages = body["messages"]
        said = f"{len(messages)}: {messages[-1]['content']}"
        return await sse(request, piece(""), piece(said), "[DONE]")

    return ScriptedServer(echo)


def run(monkeypatch: pytest.MonkeyPatch, stdin: str, *flags: str) -> int:
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    return chat.run(parser.parse_args(flags))


def conversation(client: Client) -> tuple[Chat, list[str]]:
    shown: list[str] = []
    return Chat(client, ChatOptions(model="scripted"), None, shown.append), shown


def test_lines_of_a_pipe_are_one_conversation_and_answers_stand_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(echo_server()) as url:
        assert run(monkeypatch, "one\n\ntwo\n", "--url", url) == 0
    assert capsys.readouterr().out == "1: one\n3: two\n"


def test_flags_go_into_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server = echo_server()
    flags = ["--system", "Be brief.", "--temperature", "0", "--max-tokens", "9", "--model", "m"]
    with serving(server) as url:
        assert run(monkeypatch, "hi\n", "--url", url, *flags) == 0
    (body,) = server.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 9)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_no_server_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ScriptedServer()) as url:
        pass
    assert run(monkeypatch, "hi\n", "--url", url) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert url in captured.err and "chairlift serve" in captured.err


def test_what_is_no_address_is_a_wrong_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--url: 'here' is no address"):
        run(monkeypatch, "", "--url", "here")


def test_a_refusal_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too\nlong \x1b[31m"}}, status=400)

    with serving(ScriptedServer(refuse)) as url:
        assert run(monkeypatch, "hi\n", "--url", url) == 1
    assert capsys.readouterr().err == "chairlift chat: too long [31m\n"


def test_control_characters_never_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nasty(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await sse(request, piece("a\x1b]0;title\x07"), piece("b\x9b2J\r\n\tc"), "[DONE]")

    with serving(ScriptedServer(nasty)) as url:
        run(monkeypatch, "hi\n", "--url", url)
    assert capsys.readouterr().out == "a]0;titleb2J\n\tc\n"


def test_printable_takes_out_exactly_the_controls() -> None:
    everything = "".join(map(chr, range(0x100)))
    kept = printable(everything)
    assert kept == "\t\n" + "".join(map(chr, [*range(0x20, 0x7F), *range(0xA0, 0x100)]))


def test_a_broken_off_answer_stays_in_the_conversation() -> None:
    """Else the model would not know what its user has read."""

    async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await sse(request, piece("half an"))

    with serving(ScriptedServer(cut)) as url, Client(url) as client:
        talk, shown = conversation(client)
        with pytest.raises(Interrupted, match="broke off"):
            talk.answer("hi")
        assert shown == ["half an"]
    assert [turn["content"] for turn in talk.turns] == ["hi", "half an"]


def test_a_question_without_any_answer_is_not_kept() -> None:
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503)

    with serving(ScriptedServer(refuse)) as url, Client(url) as client:
        talk, _ = conversation(client)
        with pytest.raises(Unavailable, match="503"):
            talk.answer("hi")
        assert talk.turns == []


class Terminal:
    """The chat in a process of its own, on a terminal."""

    def __init__(self, url: str) -> None:
        self._end, child = pty.openpty()
        # Ctrl-C is ignored by what a shell started in the background, and by its children.
        program = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "import argparse, sys; from chairlift.deployments import chat; "
            "parser = argparse.ArgumentParser(); chat.add_arguments(parser); "
            "sys.exit(chat.run(parser.parse_args()))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "--url", url],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self._seen = ""

    def expect(self, text: str) -> None:
        """Read until the text has been printed."""
        deadline = time.monotonic() + 30
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            self._seen += os.read(self._end, 4096).decode()
        self._seen = self._seen.partition(text)[2]

    def type(self, line: str) -> None:
        os.write(self._end, line.encode() + b"\n")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_until_end(self) -> int:
        """Until, for a signal just before readline starts to wait is noticed at the next one."""
        for _ in range(30):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(2)
        raise AssertionError("still there")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)


def test_commands_on_a_terminal() -> None:
    with serving(echo_server()) as url:
        terminal = Terminal(url)
        try:
            terminal.expect("scripted at")
            terminal.expect("> ")
            terminal.type("hello")
            terminal.expect("1: hello")
            terminal.type("again")
            terminal.expect("3: again")
            terminal.type("/system Be brief.")
            terminal.expect("is set")
            terminal.type("more")
            terminal.expect("6: more")
            terminal.type("/reset")
            terminal.expect("forgotten")
            terminal.type("anew")
            terminal.expect("2: anew")
            terminal.type("/what")
            terminal.expect("/quit ends")
            terminal.type("/quit")
            assert terminal.process.wait(30) == 0
        finally:
            terminal.close()


def test_ctrl_c_stops_the_answer_and_then_the_chat() -> None:
    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.bodies) > 1:
            return await tokens(request, body | {"max_tokens": 2})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "endless"}}]}\n\n')
        await asyncio.sleep(60)
        return response

    server = ScriptedServer(endless)
    with serving(server) as url:
        terminal = Terminal(url)
        try:
            terminal.expect("> ")
            terminal.type("go")
            terminal.expect("endless")
            terminal.interrupt()
            terminal.expect("> ")
            terminal.type("and now")
            terminal.expect("t0 t1")
            terminal.expect("> ")
            assert terminal.interrupt_until_end() == 0
        finally:
            terminal.close()
    said = [message["content"] for message in server.bodies[1]["messages"]]
    assert said == ["go", "endless", "and now"]
