"""TLS of a port: its certificate, its key and the clients that it trusts, from files.

Owns how files become something to shake hands with, and that a changed file is noticed while the
service runs. Files are taken together or not at all: one that is half written, or does not belong
to the others, leaves what was in force in force. It knows no protocol that is spoken inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc

from chairlift.cluster.config import TlsConfig
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.seldom import Seldom

__all__ = ["Pem", "Tls", "credentials", "load_files", "make_context", "read_file", "read_pem"]

logger = logging.getLogger(__name__)

LOOK_S = 1.0
HTTP = "http.tls"
MINIMUM = ssl.TLSVersion.TLSv1_2


@dataclass(frozen=True, slots=True, repr=False)
class Pem:
    """What the files hold; for gRPC, which takes bytes."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


def read_pem(config: TlsConfig, section: str = HTTP) -> Pem:
    """Raises ConfigError, which names the file."""
    certificate = read_file(config.certificate, f"{section}.certificate")
    key, client_ca = read_file(config.key, f"{section}.key"), None
    if config.client_ca is not None:
        client_ca = read_file(config.client_ca, f"{section}.client_ca")
    return Pem(certificate, key, client_ca)


def read_file(file: str, path: str) -> bytes:
    """What a file holds; raises ConfigError, which names the setting at ``path``."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read {file}: {error.strerror}") from None


def make_context(config: TlsConfig, section: str = HTTP) -> ssl.SSLContext:
    """For the server's side: TLS 1.2 or newer, with the ciphers that Python takes for sane.

    Raises ConfigError where the files cannot be read or do not go together; ``section`` is where
    they are named.
    """
    read_pem(config, section)  # says which file it is; OpenSSL would not
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM
    # Without tickets every connection shows its certificate anew, to the authorities of now.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    if config.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    load_files(context, config, section)
    return context


def load_files(context: ssl.SSLContext, config: TlsConfig, section: str) -> None:
    """Have one end show its certificate, and trust who is signed by its authority, if it has one.

    Raises ConfigError where the files do not go together.
    """
    try:
        context.load_cert_chain(config.certificate, config.key, password=_no_pass_phrase)
        if config.client_ca is not None:
            context.load_verify_locations(config.client_ca)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(f"{section}: the files do not go together: {reason}") from None


def credentials(config: TlsConfig, section: str = HTTP) -> grpc.ServerCredentials:
    """For a gRPC port; files are looked at for each handshake, and broken ones change nothing.

    Raises ConfigError where the files cannot be read or do not go together.
    """
    make_context(config, section)  # gRPC says nothing of what is wrong, and goes on without
    known = read_pem(config, section)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal known
        try:
            found = read_pem(config, section)
            if found == known:
                return None
            make_context(config, section)
        except ConfigError:
            return None
        known = found
        return _of_grpc(known)

    return grpc.dynamic_ssl_server_credentials(
        _of_grpc(known),
        newer,  # type: ignore[arg-type]  # None means that nothing has changed; its stubs lack it
        require_client_authentication=config.client_ca is not None,
    )


def _of_grpc(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.certificate)], root_certificates=pem.client_ca
    )


class Tls:
    """What a port shakes hands with.

    Attributes:
        context: stands for the newest files, for as long as it is listened with; each handshake
            is handed on to them.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError as ``make_context``."""
        self._config = config
        self._seen = self._look()
        self._newest = self.context = make_context(config)
        self.context.sni_callback = self._hand_on
        self._faults = Seldom(logger)

    def refresh(self) -> bool:
        """Take the files over if they have changed; whether that was so."""
        if (seen := self._look()) == self._seen:
            return False
        try:
            self._newest = make_context(self._config)
        except ConfigError as error:
            self._faults.warn("files", f"{error}; what was in force stays")
            return False
        self._seen = seen
        logger.info("took over a changed certificate: %s", self._config.certificate)
        return True

    async def keep_fresh(self) -> NoReturn:
        """Look every second."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.refresh)

    def _hand_on(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """OpenSSL asks at the begin of each handshake, also where the client names nobody."""
        connection.context = self._newest

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes with the files."""
        config = self._config
        files = (config.certificate, config.key, config.client_ca)
        return tuple(_facts(file) for file in files if file is not None)


def _facts(file: str) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = Path(file).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _no_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase, and nobody is there to ask")
