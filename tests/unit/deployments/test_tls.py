"""TLS of the HTTP port: who is let in, and what a changed file does."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from chairlift.cluster.config import TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.http_server import HttpServer
from chairlift.deployments.tls import Tls, make_context, read_pem
from chairlift.evaluation.openai_stream import one_line
from support.certificates import Authority
from support.http_app import http_app

REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer s3cret\r\n\r\n"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


def files(certificate: Path, key: Path, client_ca: Path | None = None) -> TlsConfig:
    ca = None if client_ca is None else str(client_ca)
    return TlsConfig(certificate=str(certificate), key=str(key), client_ca=ca)


def serving(
    run: Callable[..., object], tls: Tls, scenario: Callable[[int], Awaitable[None]]
) -> None:
    async def main() -> None:
        server = HttpServer(http_app(), "127.0.0.1", 0, tls)
        try:
            await scenario(await server.start())
        finally:
            await server.stop(1.0)

    run(main())


async def ask(port: int, context: ssl.SSLContext | None) -> tuple[bytes, str]:
    """The answer's first line, and whom it came from; b"" for none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(REQUEST)
        line = await reader.readline()
        peer = writer.get_extra_info("peercert") or {"subject": ((("", ""),),)}
        return line, peer["subject"][0][0][1]
    finally:
        writer.transport.abort()


def trusting(authority: Authority, *own: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if own:
        context.load_cert_chain(*own)
    return context


@LOOPS
def test_a_client_that_trusts_the_authority_is_served_many_times(run, tmp_path) -> None:
    authority = Authority(tmp_path)

    async def scenario(port: int) -> None:
        context = trusting(authority)
        answers = await asyncio.gather(*(ask(port, context) for _ in range(30)))
        assert set(answers) == {(b"HTTP/1.1 200 OK\r\n", "one")}

    serving(run, Tls(files(*authority.issue("one"))), scenario)


@LOOPS
def test_plain_text_is_hung_up_on_and_nothing_of_it_is_logged(run, tmp_path, caplog) -> None:
    authority = Authority(tmp_path)

    async def scenario(port: int) -> None:
        for _ in range(5):
            try:
                assert await ask(port, None) == (b"", "")
            except ConnectionResetError:
                pass
        assert (await ask(port, trusting(authority)))[0] == b"HTTP/1.1 200 OK\r\n"

    with caplog.at_level(logging.WARNING):
        serving(run, Tls(files(*authority.issue("one"))), scenario)
    assert [each.getMessage() for each in caplog.records] == [
        "refused a TLS connection: HTTP_REQUEST"
    ]


def test_our_commands_say_what_is_wrong_with_a_certificate(tmp_path) -> None:
    authority = Authority(tmp_path)
    said = []

    async def scenario(port: int) -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError) as error:
                await session.get(f"https://127.0.0.1:{port}/health")
        said.append(one_line(error.value))

    serving(asyncio.run, Tls(files(*authority.issue("one"))), scenario)
    assert said == ["unable to get local issuer certificate"]


def test_old_protocols_are_refused(tmp_path) -> None:
    context = make_context(files(*Authority(tmp_path).issue("one")))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@LOOPS
def test_with_an_authority_of_clients_only_theirs_are_let_in(run, tmp_path, caplog) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server, client, stranger = (
        authority.issue("one"),
        authority.issue("client"),
        other.issue("stranger"),
    )

    async def scenario(port: int) -> None:
        assert (await ask(port, trusting(authority, *client)))[0] == b"HTTP/1.1 200 OK\r\n"
        for context in (trusting(authority), trusting(authority, *stranger)):
            try:
                line, _ = await ask(port, context)
            except (ssl.SSLError, ConnectionError):
                continue
            assert line == b""

    with caplog.at_level(logging.WARNING):
        serving(run, Tls(files(*server, authority.file)), scenario)
    assert {each.getMessage() for each in caplog.records} == {
        "refused a TLS connection: PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "refused a TLS connection: CERTIFICATE_VERIFY_FAILED",
    }


@LOOPS
def test_changed_files_are_taken_over_while_connections_stay(run, tmp_path) -> None:
    authority = Authority(tmp_path)
    tls = Tls(files(*authority.issue("one")))

    async def scenario(port: int) -> None:
        context = trusting(authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert not tls.refresh()
        authority.issue("two", files="one")
        async with asyncio.timeout(10):
            while (await ask(port, context))[1] != "two":
                await asyncio.sleep(0.05)
        writer.write(REQUEST)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()

    serving(run, tls, scenario)


def test_files_that_do_not_go_together_leave_the_old_ones_in_force(tmp_path, caplog) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("one")
    tls = Tls(files(certificate, key))
    newest = tls._newest
    other, _ = authority.issue("two")
    for content in (other.read_bytes(), b"half of a certif", b""):
        certificate.write_bytes(content)
        assert not tls.refresh()
    certificate.unlink()
    assert not tls.refresh()
    assert tls._newest is newest
    assert "what was in force stays" in caplog.text
    assert "PRIVATE" not in caplog.text
    authority.issue("two", files="one")
    assert tls.refresh() and tls._newest is not newest


@pytest.mark.parametrize("missing", ["certificate", "key", "client_ca"])
def test_a_file_that_is_not_there_is_named(missing, tmp_path) -> None:
    authority = Authority(tmp_path)
    config = files(*authority.issue("one"), authority.file)
    config = config.model_copy(update={missing: str(tmp_path / "no")})
    with pytest.raises(ConfigError, match=rf"http\.tls\.{missing}: cannot read .*no"):
        make_context(config)


def test_the_bytes_of_all_files_are_to_be_had(tmp_path) -> None:
    authority = Authority(tmp_path)
    pem = read_pem(files(*authority.issue("one"), authority.file))
    assert pem.certificate.startswith(b"-----BEGIN CERTIFICATE")
    assert pem.client_ca == authority.file.read_bytes()
    assert b"PRIVATE" in pem.key and "PRIVATE" not in repr(pem)
