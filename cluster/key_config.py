"""API keys in the configuration: the hash of one, or that with an expiry and a name.

Owns their form and what is wrong with one; no message repeats a value, which may be a key by
mistake. Who keys are for is the business of the sections that hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints

from chairlift.cluster.keys import KeyTerms

__all__ = ["KeyConfig", "Keys", "check_owners", "key_terms", "read_moment"]


def read_moment(value: object) -> datetime:
    """A date, whose first moment it is, or a date and time; UTC where no zone is said."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError("expected a date such as 2027-01-31, or 2027-01-31T12:00:00Z")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _hash_of_key(value: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", value):
        raise ValueError("expected sha256: and 64 hexadecimal digits, as `chairlift key` prints it")
    return value


class KeyConfig(BaseModel):
    """One key; it says no more in a message than its name."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    hash: Annotated[str, AfterValidator(_hash_of_key)]
    expires: Annotated[datetime, BeforeValidator(read_moment)] | None = None
    """From this moment on it is refused."""
    name: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """By which logs tell it from others."""


def _as_section(value: object) -> object:
    return {"hash": value} if isinstance(value, str) else value


Keys: TypeAlias = tuple[Annotated[KeyConfig, BeforeValidator(_as_section)], ...]


def check_owners(keys: Mapping[str, Iterable[KeyConfig]]) -> None:
    """Raises ValueError where two names have the hash of one key."""
    owners: dict[str, str] = {}
    for name, theirs in keys.items():
        for each in theirs:
            if (owner := owners.setdefault(each.hash, name)) != name:
                raise ValueError(f"{owner} and {name} have a key in common")


def key_terms(keys: Mapping[str, Iterable[KeyConfig]]) -> dict[str, KeyTerms]:
    """Hash → terms, of all keys of all owners; one without a name goes by its owner's."""
    return {
        each.hash: KeyTerms(
            None if each.expires is None else each.expires.timestamp(),
            f"{owner}/{each.name}" if each.name else owner,
        )
        for owner, theirs in keys.items()
        for each in theirs
    }
