from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.cluster.errors import ModelError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.model_files import read_spec
from chairlift.workers.weights import load_weights
from support.tiny_llama import random_weights, write_gguf

QUICK = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    kind = gguf.GGMLQuantizationType.Q8_0
    path = tmp_path_factory.mktemp("whole") / "tiny.gguf"
    return write_gguf(path, random_weights(), type_of=lambda name: kind).read_bytes()


def data_start(data: bytes) -> int:
    """Roughly where the tensors begin; damage before it is the interesting one."""
    return data.index(b"output.weight") + 64


def outcome(action: Callable[[], object]) -> str:
    """``fine``, or the message of the one error that is allowed."""
    try:
        action()
    except ModelError as error:
        return str(error)
    return "fine"


def load(path: Path) -> None:
    dict(GgufFile.open(path).metadata)
    load_weights(read_spec(path), lambda share: None)


def damage_is_survived(path: Path) -> None:
    message = outcome(lambda: load(path))
    assert message == "fine" or (str(path) in message and "\n" not in message)


@QUICK
@given(flips=st.data())
def test_changed_bytes_load_or_are_refused(
    whole: bytes, tmp_path: Path, flips: st.DataObject
) -> None:
    changed = bytearray(whole)
    places = st.integers(0, data_start(whole))
    for place in flips.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = flips.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(changed)
    damage_is_survived(path)


@QUICK
@given(draw=st.data())
def test_lost_or_added_bytes_load_or_are_refused(
    whole: bytes, tmp_path: Path, draw: st.DataObject
) -> None:
    start = draw.draw(st.integers(0, data_start(whole)))
    lost = draw.draw(st.integers(0, 64))
    added = draw.draw(st.binary(max_size=64))
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:start] + added + whole[start + lost :])
    damage_is_survived(path)


@settings(QUICK, max_examples=100)
@given(draw=st.data())
def test_damage_never_costs_much_memory(whole: bytes, tmp_path: Path, draw: st.DataObject) -> None:
    """A count or length with its upper bits changed must not be believed and allocated."""
    place = draw.draw(st.integers(0, data_start(whole)))
    changed = bytearray(whole)
    changed[place : place + 8] = draw.draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
    path = tmp_path / "m.gguf"
    path.write_bytes(changed)
    tracemalloc.start()
    try:
        damage_is_survived(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(whole)
