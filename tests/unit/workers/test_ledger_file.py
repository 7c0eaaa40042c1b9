import json
import struct
import zlib
from pathlib import Path

import pytest

from chairlift.cluster.errors import LedgerError
from chairlift.workers.ledger_file import open_ledger, parse_ledger
from chairlift.workers.ledger_format import LAYOUT
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
