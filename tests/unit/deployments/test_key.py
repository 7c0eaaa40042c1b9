import io
import re

import pytest

from chairlift.cluster.config import load_config
from chairlift.deployments.cli import main


def test_a_new_key_is_long_random_and_found_by_its_hash(capsys):
    keys = set()
    for _ in range(2):
        assert main(["key"]) == 0
        printed = capsys.readouterr().out
        (key,) = re.findall(r"cl-[A-Za-z0-9_-]{43}", printed)
        (hash_,) = re.findall(r"sha256:[0-9a-f]{64}", printed)
        tenants = load_config(overrides={"tenants.acme.keys": [hash_]}, environment={})
        assert tenants.who_is_served().find(key).name == "acme"
        keys.add(key)
    assert len(keys) == 2


def test_the_hash_of_a_key_that_somebody_has(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n"))
    assert main(["key", "--hash"]) == 0
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert capsys.readouterr().out.strip() == expected


def test_no_key_is_wrong_use(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["key", "--hash"]) == 2
    assert "no key" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [["--hsah"], ["abc"]])
def test_a_key_is_never_taken_from_the_command_line(extra):
    with pytest.raises(SystemExit):
        main(["key", *extra])
