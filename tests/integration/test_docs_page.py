"""The API's page in a real browser. What only its script can have written must stand in it."""

from pathlib import Path

import pytest

from support.browser import BROWSER, browse, text_of
from support.figures_server import figures_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]


def test_every_operation_stands_in_the_page_and_the_first_is_open(tmp_path: Path) -> None:
    with figures_server() as url:
        document = browse(url, tmp_path, "--dump-dom", page="/docs")
    text = text_of(document)
    for shown in ("POST /v1/completions", "POST /tokenize", "GET /health", "GET /metrics"):
        assert shown in text
    assert "temperature number ≥ 0, ≤ 2; default 1" in text
    assert "429 There is no room" in text or "429 The tenant is over a limit" in text
    assert "ChatChunk" in text


def test_another_operation_is_opened_by_its_name(tmp_path: Path) -> None:
    with figures_server() as url:
        document = browse(url, tmp_path, "--dump-dom", page="/docs#post_tokenize")
    assert "return_token_strs boolean" in text_of(document)
