"""API keys: known by their hashes, and until when they hold.

Owns the look-up of whoever a key is for, and how a key is hashed. A key is 256 random bits, so its
plain SHA-256 cannot be guessed back. Looking it up in a dictionary takes a time that depends on
hashes alone: who measures it learns at most something of a stored hash, from which no key follows,
and cannot choose keys for the hash that they have. It knows neither who keys are for nor HTTP.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from chairlift.cluster.errors import Unauthorized
from chairlift.cluster.seldom import Seldom

__all__ = ["KeyRing", "KeyTerms", "hash_key"]

logger = logging.getLogger(__name__)

Owner = TypeVar("Owner")


def hash_key(key: str) -> str:
    """How a key stands in a configuration: ``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What else is known of a key.

    Attributes:
        expires: seconds since 1970, from which on it is refused; None for never.
        name: by which people tell it from others, in logs; "" for none.
    """

    expires: float | None = None
    name: str = ""


class KeyRing(Generic[Owner]):
    """Whose key one is.

    Args:
        owners: hash of a key → who it is for.
        terms: hash of a key → its terms, of those that have any.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        owners: Mapping[str, Owner],
        terms: Mapping[str, KeyTerms] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = {each: (owner, (terms or {}).get(each)) for each, owner in owners.items()}
        self._wall_clock = wall_clock
        self._refused = Seldom(logger)

    def __bool__(self) -> bool:
        """Whether there is any key."""
        return bool(self._keys)

    def __iter__(self) -> Iterator[Owner]:
        return (owner for owner, _ in self._keys.values())

    def find(self, key: str) -> Owner:
        """Who it is for. Raises Unauthorized; neither that nor the log holds the key."""
        owner, terms = self._keys.get(hash_key(key), (None, None))
        if owner is None:
            self._refused.warn("unknown", "refused an API key that is not known")
            raise Unauthorized("the API key is not known", code="invalid_api_key")
        if terms is not None and terms.expires is not None and self._wall_clock() >= terms.expires:
            name = terms.name or "without a name"
            self._refused.warn(name, f"refused an API key that has expired: {name}")
            raise Unauthorized("the API key has expired", code="expired_api_key")
        return owner
