"""Files of Chairlift's own: ledgers, the configuration, the Guard's policy."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import yaml
from hypothesis import strategies as st

from chairlift.cluster.config import load_config
from chairlift.cluster.errors import ConfigError, LedgerError
from chairlift.cluster.guard_policy import SHIPPED, load_policy
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_format import FILE_HEAD, FRAME
from chairlift.workers.replay import replay
from fuzz.damage import any_json, damaged, nested, noise
from fuzz.target import Feed, Target, need
from support.engines import Rig
from support.ledgers import payloads, record

__all__ = ["CONFIG", "LEDGER", "POLICY"]


def _ledgers(scratch: Path) -> st.SearchStrategy[bytes]:
    """Damaged as a disk does it, and as somebody does it who writes right checksums."""
    rig = Rig()
    ledger = record(rig)
    for handle in range(0, 10, 2):
        rig.submit(handle, n=2, stop_token_ids=(3, 4))
    rig.intake.cancel(0, [1])
    rig.run_until_idle()
    content = ledger.content()
    begin = parse_ledger(content).records_at
    head, records = content[:begin], [payload for _, payload in payloads(content)]
    return st.one_of(
        damaged([content]),
        st.builds(
            lambda at, broken: (
                head + b"".join(map(_framed, [*records[:at], broken, *records[at:]]))
            ),
            st.integers(0, len(records)),
            st.one_of(damaged(records), SNAPSHOTS, noise),
        ),
        damaged([head[FILE_HEAD.size :]], [b"NaN", b"[]", b"-1", b"null"]).map(
            lambda text: _headed(head, text) + content[begin:]
        ),
        nested((b"[", b"]"), (b'{"a":', b"}")).map(lambda text: _headed(head, text)),
        noise,
    )


def _framed(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _headed(head: bytes, text: bytes) -> bytes:
    magic, layout, *_ = FILE_HEAD.unpack_from(head)
    return FILE_HEAD.pack(magic, layout, len(text), zlib.crc32(text)) + text


def _snapshot(text: bytes) -> bytes:
    return b"\x06" + struct.pack("<Q", 1) + zlib.compress(text, 9)


def _bomb(size: int) -> bytes:
    """A snapshot of so many MiB of spaces."""
    packing = zlib.compressobj(9)
    text = b"".join(packing.compress(b" " * 2**20) for _ in range(size))
    return b"\x06" + struct.pack("<Q", 1) + text + packing.flush()


BOMBS = [_bomb(1), _bomb(200)]
"""Made once, for who feeds them is measured."""
SNAPSHOTS = st.one_of(
    nested((b"[", b"]"), (b'{"a":', b"}")),
    any_json(st.sampled_from(["running", "waiting", "pool", "controls", "sequences"])).map(
        lambda value: json.dumps(value).encode()
    ),
).map(_snapshot) | st.sampled_from(BOMBS)


@contextmanager
def _ledger(scratch: Path) -> Iterator[Feed]:
    def feed(data: bytes) -> None:
        file = parse_ledger(data)
        list(file)
        replay(file.header, file)

    yield feed


CONFIGURATION = """\
model: smollm2
engine: {max_sequences: 4, token_budget: 64}
router: {max_queue: 10}
http: {port: 8000}
tenants:
  ann: {keys: [abc], weight: 2.0}
operators: {bob: [def]}
"""
BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{last}'] * 9)}]}}\n"
    for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML_WORDS = [
    word.encode()
    for word in (
        "2026-99-99", "2026-01-01T99:99:99", "!!int x", "!!binary x", "!!python/object:os.x {}",
        "&a", "*a", "<<: *a", "? [a]\n: b\n", ".nan", ".inf", "1e999", "0x", "0b2", "1:99:99",
        "!!float x", "!!timestamp x", "~", "\t", "- ", "? ", "[", "{", "%YAML 9", "---", "\0",
        "!!set {a, b}", "!!omap [a]", "!!int ''", "9" * 5000, "0o9", "-_", "=", "<<: 1",
    )
]  # fmt: skip


def _yaml(*texts: str) -> st.SearchStrategy[bytes]:
    trees = [yaml.safe_load(text) for text in texts]
    keys = st.sampled_from(sorted({key for tree in trees for key in tree}))
    changed = st.builds(
        lambda tree, other: yaml.safe_dump({**tree, **other}).encode("utf-8", "replace"),
        st.sampled_from(trees),
        st.dictionaries(keys, any_json(keys), min_size=1, max_size=2),
    )
    return st.one_of(
        damaged([*(text.encode() for text in texts), BOMB.encode(), MERGES.encode()], YAML_WORDS),
        changed,
        st.sampled_from(YAML_WORDS).map(lambda word: b"model: " + word),
        nested((b"[", b"]"), (b"{a: ", b"}"), (b"- ", b"")),
        noise,
    )


@contextmanager
def _reading(scratch: Path, read: Callable[[Path], object]) -> Iterator[Feed]:
    path = scratch / "c.yaml"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except ConfigError as error:
            need("\n" not in str(error), f"more than a line: {error}")
            raise

    yield feed


def _config(scratch: Path) -> AbstractContextManager[Feed]:
    return _reading(scratch, lambda path: load_config(path, environment={}))


def _policy(scratch: Path) -> AbstractContextManager[Feed]:
    return _reading(scratch, load_policy)


LEDGER = Target("ledgers", _ledgers, _ledger, (LedgerError,))
CONFIG = Target("configuration", lambda scratch: _yaml(CONFIGURATION), _config, (ConfigError,))
POLICY = Target("guard.yaml", lambda scratch: _yaml(SHIPPED.read_text()), _policy, (ConfigError,))
