import asyncio
import base64
import hashlib
import re

from support.asgi_client import call
from support.http_app import http_app


def test_the_page_runs_its_own_script_and_nothing_else_and_needs_no_other_address():
    reply = asyncio.run(call(http_app(), "GET", "/docs"))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    (script,) = re.findall(rb"<script>(.*?)</script>", reply.body, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = reply.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert b"http://" not in reply.body
    assert b"https://" not in reply.body
    assert b"innerHTML" not in reply.body
