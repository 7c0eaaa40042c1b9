"""The page in a real browser. What only a script can have written must stand in the document."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.figures import SCRIPT, cluster_figures
from support.figures_server import FakeHub, figures_server

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]


def browse(url: str, folder: Path, *flags: str, seconds: int = 5) -> str:
    """So many of the page's own seconds; returns what chromium prints."""
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"),
        *(f"--virtual-time-budget={seconds * 1000}", *flags, f"{url}/dashboard"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def text_of(document: str) -> str:
    """What a reader sees, without the script."""
    body = re.sub(r"<script>.*</script>|<style>.*</style>", "", document, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_figures_stand_in_the_page_and_names_are_only_text(tmp_path: Path) -> None:
    hub = FakeHub(cluster_figures())
    with figures_server(hub) as url:
        document = browse(url, tmp_path, "--dump-dom")
    text = text_of(document)
    assert hub.asked > 2
    assert "Live, from 2 routers together" in text
    for shown in ("First token, p99 713 ms", "Goodput 87.7 %", "Waiting 19", "p95 240 ms"):
        assert shown in text
    assert "replica-3 ✕ not live – – – – – – –" in text
    assert "acme 2 68.4 % 20,480 2.31× 0.0 % 713 ms 87.7 %" in text
    assert "Started 98,765" in text
    assert "✓ started = finished + cancelled" in text
    assert html.escape(SCRIPT, quote=False) in document
    assert SCRIPT not in document
    assert len(re.findall(r'<path class="line p99" d="M', document)) == 2


def test_the_page_says_that_the_hub_does_not_answer(tmp_path: Path) -> None:
    with figures_server(FakeHub(None)) as url:
        text = text_of(browse(url, tmp_path, "--dump-dom"))
    assert "No figures: the Hub does not answer; serving goes on." in text


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (False, r"These figures are \d+ s old: the Hub says nothing new\."),
        (True, r"the Hub does not answer; serving goes on\. What is shown is \d+ s old\."),
    ],
)
def test_old_figures_stay_and_say_how_old_they_are(silent: bool, said: str, tmp_path: Path) -> None:
    hub = FakeHub(cluster_figures(), answers=2, silent=silent)
    with figures_server(hub) as url:
        text = text_of(browse(url, tmp_path, "--dump-dom", seconds=12))
    assert re.search(said, text)
    assert "First token, p99 713 ms" in text


def test_light_dark_and_a_narrow_window_look_different(tmp_path: Path) -> None:
    looks = {
        "light": ("--window-size=1280,1000",),
        "dark": ("--window-size=1280,1000", "--blink-settings=preferredColorScheme=0"),
        "narrow": ("--window-size=500,1000",),
    }
    with figures_server() as url:
        for name, flags in looks.items():
            browse(url, tmp_path / name, *flags, f"--screenshot={tmp_path / name}.png")
    pictures = {(tmp_path / f"{name}.png").read_bytes() for name in looks}
    assert len(pictures) == len(looks)
    assert min(map(len, pictures)) > 20_000
