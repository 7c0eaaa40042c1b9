"""TLS on the gRPC port: who may shake hands, and that changed files are taken over."""

import asyncio
import shutil
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift.cluster.config import TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.tls import credentials
from support.certificates import Authority
from support.grpc_front import serving_port

SERVING = health_pb2.HealthCheckResponse.SERVING


def config_of(certificate: Path, key: Path, client_ca: Path | None = None) -> TlsConfig:
    ca = None if client_ca is None else str(client_ca)
    return TlsConfig(certificate=str(certificate), key=str(key), client_ca=ca)


async def status(channel: grpc.aio.Channel) -> int:
    """What health says; raises where nobody shakes hands."""
    call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
    return (await call).status


def trust(ca: Path, pair: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
    certificate, key = (None, None) if pair is None else (each.read_bytes() for each in pair)
    return grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)


async def asked(port: int, ca: Path, pair: tuple[Path, Path] | None = None) -> int:
    """As a client that trusts ``ca``, and shows ``pair``."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    address = f"127.0.0.1:{port}"
    async with grpc.aio.secure_channel(address, trust(ca, pair), options) as channel:
        return await status(channel)


def test_speaks_tls_and_nothing_else(tmp_path):
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path, "stranger")

    async def main() -> None:
        async with serving_port(tls=config_of(*authority.issue("server"))) as port:
            assert await asked(port, authority.file) == SERVING
            for attempt in (
                asked(port, stranger.file),
                plain(port),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await attempt
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await asked(port, authority.file) == SERVING

    async def plain(port: int) -> int:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await status(channel)

    asyncio.run(main())


def test_asks_clients_for_certificates_where_it_is_to(tmp_path):
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")

    async def main() -> None:
        config = config_of(*authority.issue("server"), clients.file)
        async with serving_port(tls=config) as port:
            assert await asked(port, authority.file, clients.issue("known")) == SERVING
            with pytest.raises(grpc.aio.AioRpcError):
                await asked(port, authority.file)
            with pytest.raises(grpc.aio.AioRpcError):
                await asked(port, authority.file, authority.issue("unknown"))

    asyncio.run(main())


def test_takes_over_changed_files_and_leaves_broken_ones(tmp_path):
    old, new = Authority(tmp_path), Authority(tmp_path, "newer")

    async def main() -> None:
        config = config_of(*old.issue("server"))
        async with serving_port(tls=config) as port:
            assert await asked(port, old.file) == SERVING
            for made, used in zip(
                new.issue("server", "next"), (config.certificate, config.key), strict=True
            ):
                shutil.copy(made, used)
            assert await asked(port, new.file) == SERVING
            shutil.copy(config.key, config.certificate)
            assert await asked(port, new.file) == SERVING

    asyncio.run(main())


def test_files_that_do_not_go_together_are_no_credentials(tmp_path):
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("one")
    _, key = authority.issue("other")
    with pytest.raises(ConfigError, match="do not go together"):
        credentials(config_of(certificate, key))
