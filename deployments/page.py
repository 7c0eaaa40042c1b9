"""A page of our own for people's browsers: one file, with its style and its script.

Owns the headers that keep it to itself: nothing but its own script runs, and that talks only to
this server. It knows nothing of what a page shows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from chairlift.deployments.asgi import Exchange

__all__ = ["Page"]

_SCRIPT = re.compile(rb"<script>(.*)</script>", re.DOTALL)
_POLICY = (
    b"default-src 'none'; script-src 'sha256-%b'; style-src 'unsafe-inline'; img-src data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page:
    """One of the HTML files of this folder."""

    def __init__(self, file: str) -> None:
        self._content = resources.files("chairlift.deployments").joinpath(file).read_bytes()
        script = _SCRIPT.search(self._content)
        assert script is not None
        digest = base64.b64encode(hashlib.sha256(script[1]).digest())
        self._headers = (
            (b"content-security-policy", _POLICY % digest),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        )

    async def show(self, exchange: Exchange) -> None:
        await exchange.respond(
            200, self._content, content_type="text/html; charset=utf-8", headers=self._headers
        )
