from pathlib import Path

import pytest

from chairlift.cluster.config import LedgerConfig, cache_folder, load_config
from chairlift.cluster.errors import ConfigError


def test_recording_is_on_in_memory_and_off_on_disk_by_default() -> None:
    ledger = load_config(environment={}).ledger
    assert (ledger.enabled, ledger.always, ledger.ring) == (True, False, 16 * 1024**2)
    assert ledger.path == cache_folder() / "ledger"


def test_the_environment_turns_the_journal_on_and_says_where() -> None:
    environment = {"CHAIRLIFT__LEDGER__ALWAYS": "true", "CHAIRLIFT__LEDGER__FOLDER": "/var/ledger"}
    ledger = load_config(environment=environment).ledger
    assert ledger.always and ledger.path == Path("/var/ledger")


def test_a_ring_that_could_hold_no_snapshot_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ledger\.ring"):
        load_config(overrides={"ledger.ring": "1KiB"}, environment={})
    assert LedgerConfig(ring="64KiB").ring == 65536
