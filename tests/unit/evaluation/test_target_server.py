"""Which server our commands talk to, and with whose certificates."""

import argparse
import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from chairlift.client import AsyncClient, Interrupted, NotConnected
from chairlift.cluster.config import TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.http_server import HttpServer
from chairlift.deployments.tls import Tls
from chairlift.evaluation.target_server import Server, add_server_flags, named_server
from support.certificates import Authority
from support.http_app import MODEL, http_app


def server_of(*flags: object) -> Server:
    parser = argparse.ArgumentParser()
    add_server_flags(parser)
    return named_server(parser.parse_args(list(map(str, flags))))


def test_without_flags_it_is_the_one_that_serve_starts() -> None:
    assert server_of() == Server("http://127.0.0.1:8000/v1")
    assert server_of().root == "http://127.0.0.1:8000"
    assert server_of("--url", "https://host/").tls is None


def test_a_private_authority_is_trusted_and_a_certificate_shown(tmp_path: Path) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    certificate, key = authority.issue("server")
    config = TlsConfig(certificate=str(certificate), key=str(key), client_ca=str(clients.file))
    own, own_key = clients.issue("client")
    both = tmp_path / "both.pem"
    both.write_bytes(own.read_bytes() + own_key.read_bytes())

    async def main() -> None:
        http = HttpServer(http_app(), "127.0.0.1", 0, Tls(config))
        url = f"https://127.0.0.1:{await http.start()}"
        trust = ("--url", url, "--ca", authority.file)
        try:
            for shown in (("--cert", own, "--key", own_key), ("--cert", both)):
                server = server_of(*trust, *shown)
                async with server.session(10.0) as session:
                    async with session.get(f"{server.base}/models") as answer:
                        assert (await answer.json())["data"][0]["id"] == MODEL
                async with AsyncClient(url, tls=server.tls) as client:
                    assert [model.id for model in await client.models()] == [MODEL]
            for flags in (trust, ("--url", url), (*trust[:3], clients.file, "--cert", both)):
                server = server_of(*flags)
                async with server.session(10.0) as session:
                    with pytest.raises((aiohttp.ClientError, ssl.SSLError, OSError)):
                        await session.get(f"{server.base}/models")
            async with AsyncClient(url, tls=server_of(*trust).tls) as client:
                with pytest.raises((NotConnected, Interrupted)):
                    await client.models()
            async with AsyncClient(url) as client:
                with pytest.raises(NotConnected):
                    await client.models()
        finally:
            await http.stop(1.0)

    asyncio.run(main())


def test_flags_that_cannot_be_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("one")
    _, other = authority.issue("other")
    https = ("--url", "https://host")
    for flags, message in (
        (("--url", "here"), "--url: 'here' is no address"),
        (("--ca", authority.file), "--ca: http://127.0.0.1:8000 is not https://"),
        ((*https, "--key", key), "--key goes with --cert"),
        ((*https, "--ca", tmp_path / "no"), "--ca: cannot use .*no: No such file"),
        ((*https, "--ca", key), "--ca: cannot use .*one.key: "),
        ((*https, "--cert", tmp_path / "no"), "--cert: cannot use .*no: No such file"),
        ((*https, "--cert", certificate, "--key", other), "--cert: .*: KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            server_of(*flags)
