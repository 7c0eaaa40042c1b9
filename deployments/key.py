"""``chairlift key``: make an API key, or tell how one stands in a configuration.

Owns the form of a key. Nothing is stored: the key is for the client, its hash for the service.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.key_config import read_moment
from chairlift.cluster.keys import hash_key

__all__ = ["add_arguments", "run"]

PREFIX = "cl-"
KEY_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``key``."""
    parser.add_argument(
        "--hash",
        action="store_true",
        help="read a key from standard input and print its hash, instead of making one",
    )
    parser.add_argument(
        "--expires",
        metavar="TIME",
        help="from when on it is refused: 2027-01-31 (its first moment), 2027-01-31T12:00:00Z",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a key and its hash, or the hash alone.

    Raises ConfigError where no key is given, or the time is none.
    """
    if arguments.hash:
        key = sys.stdin.readline().strip()
        if not key:
            raise ConfigError("no key on standard input")
        print(_entry(hash_key(key), arguments.expires))
        return 0
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    entry = _entry(hash_key(key), arguments.expires)
    print(f"key, for the client:             {key}")
    print(f"hash, for tenants.<name>.keys:   {entry}")
    return 0


def _entry(key_hash: str, expires: str | None) -> str:
    """How it stands in a configuration."""
    if expires is None:
        return key_hash
    try:
        moment = read_moment(expires)
    except ValueError as error:
        raise ConfigError(f"--expires: {error}") from None
    return f'{{hash: "{key_hash}", expires: "{moment.isoformat()}"}}'
