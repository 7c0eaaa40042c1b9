"""TLS of the streams from routers to workers: one authority, and a certificate at either end.

Owns how the configured files become what each end shakes hands with, and the proof, before anything
is started, that they will. A worker is known by its name (``router.passport``), for its address is
whatever its node has; a router by its authority, and then by the cluster's token.
"""

from __future__ import annotations

import contextlib
import ssl

import grpc

from chairlift.cluster.config import StreamTlsConfig, TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.tls import (
    Pem,
    credentials,
    load_files,
    make_context,
    read_file,
    read_pem,
)
from chairlift.router.passport import WORKER_NAME

__all__ = ["RouterEnd", "check_stream", "worker_credentials"]

CA, WORKER, ROUTER = "workers.tls.ca", "workers.tls.worker", "workers.tls.router"
ROUND_TRIPS = 3
"""Of a handshake at most."""


def worker_credentials(config: StreamTlsConfig) -> grpc.ServerCredentials:
    """For a worker's port, as ``tls.credentials``; whoever has no certificate is refused."""
    read_file(config.ca, CA)
    return credentials(_worker(config), WORKER)


class RouterEnd:
    """What routers show and trust; broken files leave in force what was."""

    def __init__(self, config: StreamTlsConfig) -> None:
        """Raises ConfigError where the files cannot be read or do not go together."""
        self._config = config
        self._pem = self._read()

    def newest(self) -> grpc.ChannelCredentials:
        """For one more connection; reads the files."""
        with contextlib.suppress(ConfigError):
            self._pem = self._read()
        pem = self._pem
        return grpc.ssl_channel_credentials(pem.client_ca, pem.key, pem.certificate)

    def _read(self) -> Pem:
        _router_context(self._config)
        return read_pem(_router(self._config), ROUTER)


def check_stream(config: StreamTlsConfig) -> None:
    """Have both ends shake hands, without a network.

    Raises ConfigError, which names the end whose certificate the other one does not take.
    """
    to_worker, to_router = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = _router_context(config), make_context(_worker(config), WORKER)
    router = client.wrap_bio(to_router, to_worker, server_hostname=WORKER_NAME)
    worker = server.wrap_bio(to_worker, to_router, server_side=True)
    for _ in range(ROUND_TRIPS):
        for end, other in ((router, WORKER), (worker, ROUTER)):
            try:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
            except ssl.SSLError as error:
                reason = getattr(error, "verify_message", None) or error.reason
                fault = f"{other}.certificate: the other end refuses it: {reason}"
                raise ConfigError(fault) from None


def _router_context(config: StreamTlsConfig) -> ssl.SSLContext:
    read_file(config.ca, CA)
    read_pem(_router(config), ROUTER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_files(context, _router(config), ROUTER)
    return context


def _worker(config: StreamTlsConfig) -> TlsConfig:
    files = config.worker
    return TlsConfig(certificate=files.certificate, key=files.key, client_ca=config.ca)


def _router(config: StreamTlsConfig) -> TlsConfig:
    files = config.router
    return TlsConfig(certificate=files.certificate, key=files.key, client_ca=config.ca)
