import json
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from chairlift.cluster.errors import LedgerError
from chairlift.workers import ledger_codec
from chairlift.workers.ledger_file import open_ledger, parse_ledger
from chairlift.workers.ledger_format import LAYOUT
from chairlift.workers.replay import replay
from support.engines import Rig
from support.ledgers import record


@pytest.fixture(scope="module")
def content() -> bytes:
    rig = Rig()
    ledger = record(rig)
    for handle in range(0, 10, 2):
        rig.submit(handle, n=2, stop_token_ids=(3, 4))
    rig.intake.cancel(0, [1])
    rig.run_until_idle()
    return ledger.content()


def test_a_ledger_says_what_it_was_made_of(content: bytes) -> None:
    header = parse_ledger(content).header
    assert (header.model, header.replica_id) == ("fake", "r")
    assert (header.block_size, header.num_blocks, header.prefix_cache) == (4, 1024, True)
    assert header.controls.max_sequences == 4


def test_a_file_cut_off_anywhere_gives_its_whole_records_and_names_the_place(
    content: bytes,
) -> None:
    file = parse_ledger(content, "some.ledger")
    whole = len(list(file))
    for end in range(file.records_at + 1, len(content), 7):
        records = []
        try:
            for each in parse_ledger(content[:end], "some.ledger"):
                records.append(each)
        except LedgerError as error:
            assert "some.ledger is damaged at byte" in str(error)
        assert len(records) < whole


def test_every_changed_byte_is_noticed(content: bytes) -> None:
    for at in range(0, len(content), 11):
        damaged = content[:at] + bytes((content[at] ^ 0x10,)) + content[at + 1 :]
        with pytest.raises(LedgerError):
            list(parse_ledger(damaged))


def test_a_record_of_nonsense_with_a_right_checksum_is_damage_too(content: bytes) -> None:
    records_at = parse_ledger(content).records_at
    for payload in (b"", b"\x09", b"\x02short", b"\x06" + bytes(8) + b"no zlib"):
        frame = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
        with pytest.raises(LedgerError, match="makes no sense"):
            list(parse_ledger(content[:records_at] + frame))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "is no ledger"),
        (lambda content: b"GGUF" + content[4:], "is no ledger"),
        (lambda content: content[:8] + b"\x63\x00" + content[10:], "has layout 99"),
        (lambda content: content[:30], "header's checksum"),
        (lambda content: header_of({"model": "m"}), "says something else"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(content: bytes, change, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        parse_ledger(change(content))


def header_of(fields: dict) -> bytes:
    text = json.dumps(fields).encode()
    return struct.pack("<8sHII", b"CHLEDGER", LAYOUT, len(text), zlib.crc32(text)) + text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot read .*gone\.ledger: No such file"):
        open_ledger(tmp_path / "gone.ledger")


def framed(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def snapshot_of(text: bytes) -> bytes:
    return framed(b"\x06" + bytes(8) + zlib.compress(text))


@pytest.mark.parametrize("text", [b"[" * 100_000, b"null", b"3", b"[]"])
def test_a_snapshot_that_is_deep_or_no_object_is_damage(content: bytes, text: bytes) -> None:
    records_at = parse_ledger(content).records_at
    with pytest.raises(LedgerError, match="makes no sense"):
        list(parse_ledger(content[:records_at] + snapshot_of(text)))


def test_a_snapshot_is_not_unpacked_beyond_its_bound(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_codec, "MAX_STATE", 2**20)
    records_at = parse_ledger(content).records_at
    bomb = content[:records_at] + snapshot_of(b" " * (20 * 2**20) + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(LedgerError):
            list(parse_ledger(bomb))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    "change", [{"num_blocks": 10**15}, {"num_blocks": -1}, {"num_blocks": "x"}, {"block_size": 0}]
)
def test_a_header_of_an_impossible_cache_is_refused(content: bytes, change: dict) -> None:
    file = parse_ledger(content)
    text = content[struct.calcsize("<8sHII") : file.records_at]
    with pytest.raises(LedgerError, match="says something else"):
        parse_ledger(header_of(json.loads(text) | change))


def test_a_header_without_end_is_refused() -> None:
    text = b'{"a":' * 50_000
    head = struct.pack("<8sHII", b"CHLEDGER", LAYOUT, len(text), zlib.crc32(text))
    with pytest.raises(LedgerError, match="says something else"):
        parse_ledger(head + text)


def test_a_replay_refuses_a_state_that_no_scheduler_was_ever_in(content: bytes) -> None:
    records_at = parse_ledger(content).records_at
    for state in ({}, {"pool": None}, {"running": [3]}):
        file = parse_ledger(content[:records_at] + snapshot_of(json.dumps(state).encode()))
        with pytest.raises(LedgerError, match="snapshot of step 0 is wrong"):
            replay(file.header, file)
