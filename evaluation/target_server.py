"""The server that a command talks to: its address, whom to trust there, and what to show.

Owns the flags for that, and the connections that come of them. The API key comes from the
environment (``cluster.config``); what is said over a connection is each command's business.
"""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass

import aiohttp

from chairlift.cluster.config import client_headers
from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.openai_stream import api_base

__all__ = ["Server", "add_server_flags", "add_tls_flags", "named_server"]


@dataclass(frozen=True, slots=True)
class Server:
    """One server.

    Attributes:
        base: its address up to and including ``/v1``.
        tls: whom to trust, and perhaps a certificate to show; None: as the system does.
    """

    base: str
    tls: ssl.SSLContext | None = None

    @property
    def root(self) -> str:
        """The address without ``/v1``."""
        return self.base.removesuffix("/v1")

    def session(self, timeout_s: float | None = None) -> aiohttp.ClientSession:
        """As many connections as are needed; ``timeout_s`` is for each request as a whole."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls or True),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            headers=client_headers(),
        )


def add_server_flags(parser: argparse._ActionsContainer) -> None:
    """``--url``, by default that of ``chairlift serve``, and those of TLS."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    add_tls_flags(parser)


def add_tls_flags(parser: argparse._ActionsContainer) -> None:
    """Those of a service whose certificates no system knows of."""
    parser.add_argument("--ca", metavar="FILE", help="PEM: whom to trust, in place of the system's")
    parser.add_argument("--cert", metavar="FILE", help="PEM: the certificate to show")
    parser.add_argument("--key", metavar="FILE", help="PEM: its key, where --cert has it not")


def named_server(arguments: argparse.Namespace) -> Server:
    """What the flags say; raises ConfigError, which names the flag."""
    try:
        base = api_base(arguments.url)
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from None
    given = [flag for flag in ("ca", "cert", "key") if getattr(arguments, flag) is not None]
    if not given:
        return Server(base)
    if not base.startswith("https://"):
        raise ConfigError(f"--{given[0]}: {arguments.url} is not https://")
    if arguments.cert is None and arguments.key is not None:
        raise ConfigError("--key goes with --cert")
    return Server(base, _context(arguments))


def _context(arguments: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=arguments.ca)
    except OSError as error:  # SSLError is one
        raise ConfigError(f"--ca: cannot use {arguments.ca}: {_reason(error)}") from None
    if arguments.cert is not None:
        try:
            context.load_cert_chain(arguments.cert, arguments.key)
        except OSError as error:
            raise ConfigError(f"--cert: cannot use {arguments.cert}: {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return str(error.strerror)
