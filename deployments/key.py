"""``chairlift key``: make an API key, or tell how one stands in a configuration.

Owns the form of a key. Nothing is stored: the key is for the client, its hash for the service.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.tenants import hash_key

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


def run(arguments: argparse.Namespace) -> int:
    """Print a key and its hash, or the hash alone. Raises ConfigError where no key is given."""
    if arguments.hash:
        key = sys.stdin.readline().strip()
        if not key:
            raise ConfigError("no key on standard input")
        print(hash_key(key))
        return 0
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    print(f"key, for the client:             {key}")
    print(f"hash, for tenants.<name>.keys:   {hash_key(key)}")
    return 0
