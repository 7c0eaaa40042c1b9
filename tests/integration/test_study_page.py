"""The page of a study in a real browser."""

from pathlib import Path

import pytest

from chairlift.evaluation.study_report import write_reports
from chairlift.evaluation.study_summary import find
from support.browser import BROWSER, browse, text_of
from support.studies import finished_study, write_plan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here"),
]

LOOKS = {
    "light": ("--window-size=1280,1000",),
    "dark": ("--window-size=1280,1000", "--blink-settings=preferredColorScheme=0"),
}


def test_the_page_shows_verdict_and_pictures_light_and_dark(tmp_path: Path) -> None:
    result = finished_study(tmp_path / "result", write_plan(tmp_path)).read()
    write_reports(result, find(result.plan, result.runs))
    url = f"file://{result.folder}"
    text = text_of(browse(url, tmp_path, "--dump-dom", page="/report.html"))
    assert "The claim holds" in text
    assert "Seats under static" in text
    for name, flags in LOOKS.items():
        picture = f"--screenshot={tmp_path / name}.png"
        browse(url, tmp_path, *flags, picture, page="/report.html")
    light, dark = ((tmp_path / f"{name}.png").read_bytes() for name in LOOKS)
    assert light != dark
    assert min(len(light), len(dark)) > 20_000
