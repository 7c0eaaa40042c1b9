"""The page in a real browser. What only a script can have written must stand in the document."""

import html
import json
import re
from pathlib import Path
from urllib.request import urlopen

import pytest

from support.browser import BROWSER, browse, text_of
from support.figures import SCRIPT, cluster_figures, guard_figures
from support.figures_server import FakeHub, figures_server
from support.riders import FakeLedgers, lively_ledger

RUNS = ("ran", "static")
TALL = "--window-size=1280,5000"
"""A window in which everything is in sight, as the riders must be to be asked for."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]


def test_figures_stand_in_the_page_and_names_are_only_text(tmp_path: Path) -> None:
    step = {"at": 0.0, "before": 1, "after": 2, "reason": "9 sequences/s"}
    scaling = {"ready": 1, "desired": 2, "min": 0, "max": 4, "cause": "cool_down", "reason": SCRIPT}
    hub = FakeHub(cluster_figures(autoscaling=scaling | {"steps": [step]}))
    with figures_server(hub) as url:
        document = browse(url, tmp_path, "--dump-dom")
    text = text_of(document)
    assert hub.asked > 2
    assert "1 of 2, 0 to 4 as the load wants it. cool down: " in text
    assert "1 → 2, 9 sequences/s." in text
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


def test_riders_get_on_and_off_as_the_ledger_says_and_beside_them_static_batching(
    tmp_path: Path,
) -> None:
    ledgers = FakeLedgers(lively_ledger(seats=6, steps=120), "replica-1", "replica-2")
    with figures_server(ledgers=ledgers) as url:
        document = browse(url, tmp_path, "--dump-dom", TALL, seconds=9)
        found = json.loads(urlopen(f"{url}/dashboard/riders?replica=replica-1").read())
    assert set(ledgers.asked) == {("replica-1", 240)}
    text = text_of(document)
    ran, static = found["ran"]["steps"], found["static"]["steps"]
    assert f"{ran} steps, {100 * found['ran']['occupancy']:.1f} % of the seats taken" in text
    assert f"{static / ran:.2f}".rstrip("0").rstrip(".") + " times as many steps." in text
    pictures = [re.search(rf'<figure id="{side}">.*?</figure>', document) for side in RUNS]
    for side, picture in zip(RUNS, pictures, strict=True):
        assert picture is not None
        bars = re.findall(r'<rect class="" ', picture[0])
        assert len(bars) == sum(len(rider[side]) for rider in found["riders"])
        assert picture[0].count('class="lanes"') == 6
    assert f">{html.escape(SCRIPT, quote=False)}<" in document
    assert SCRIPT not in document
    rider = found["riders"][0]
    assert f"{rider['request']} {rider['tenant']} {rider['prompt']} {rider['output']}" in text


def test_a_replica_without_a_ledger_says_so(tmp_path: Path) -> None:
    with figures_server(ledgers=FakeLedgers(b"")) as url:
        text = text_of(browse(url, tmp_path, "--dump-dom", TALL))
    assert "There is no replica 'replica-1'" in text


def test_the_guard_stands_in_the_page_with_its_reasons(tmp_path: Path) -> None:
    guard = guard_figures(waiting_for="cut_admission", held_by="kim", mode="shadow", frozen=True)
    with figures_server(FakeHub(cluster_figures(guard=guard))) as url:
        document = browse(url, tmp_path, "--dump-dom")
    text = text_of(document)
    assert "Rung 1, no speculation since" in text
    for shown in ("shadow: it only says", "held by kim", "rung cut admission waits", "frozen:"):
        assert shown in text
    assert 'class="lit here " aria-current="step"' in document
    assert "6 cut admission waits" in text
    assert "kv use ✕ 0.97 > 0.9 replica-1 capacity" in text
    assert "normal → no speculation kv use 0.95, threshold 0.9, replica-1 capacity" in text
    assert "queue full 6,262 · replica lost 86" in text
    assert "✕ failed replica lost <script>" in text


@pytest.mark.parametrize(
    ("guard", "said"), [(None, "Nothing is known of it."), ({"mode": "off"}, "It is off")]
)
def test_without_a_guard_the_page_says_so(
    guard: dict[str, str] | None, said: str, tmp_path: Path
) -> None:
    with figures_server(FakeHub(cluster_figures(guard=guard))) as url:
        text = text_of(browse(url, tmp_path, "--dump-dom"))
    assert f"Guard {said}" in text
    assert "Live, from 2 routers together" in text


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
