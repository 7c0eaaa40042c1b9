"""The dashboard in a real browser, where there is one."""

import html
import re
import shutil
import subprocess
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def browse(url: str, folder: Path, *flags: str, seconds: int = 5, page: str = "/dashboard") -> str:
    """So many of the page's own seconds; returns what chromium prints."""
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"),
        *(f"--virtual-time-budget={seconds * 1000}", *flags, f"{url}{page}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def text_of(document: str) -> str:
    """What a reader sees, without the script."""
    body = re.sub(r"<script>.*</script>|<style>.*</style>", "", document, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
