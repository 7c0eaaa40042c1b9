import shutil
from pathlib import Path

import pytest

from checks.proto_stubs import check_stubs, main

ROOT = Path(__file__).parents[3]
PROTO = Path("chairlift/cluster/proto")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / PROTO, tmp_path / PROTO)
    return tmp_path


def test_the_committed_stubs_are_up_to_date():
    assert list(check_stubs(ROOT)) == []


def test_a_changed_proto_is_found(copy):
    proto = copy / PROTO / "worker.proto"
    proto.write_text(proto.read_text().replace("string router_id = 1;", "string name = 1;"))
    files = {Path(item.file).name for item in check_stubs(copy)}
    assert files == {"worker_pb2.py", "worker_pb2.pyi"}


def test_a_missing_stub_is_found(copy, capsys):
    (copy / PROTO / "worker_pb2_grpc.py").unlink()
    assert main([str(copy)]) == 1
    assert "worker_pb2_grpc.py:1: is missing" in capsys.readouterr().out


def test_a_tree_without_any_proto_is_a_violation(tmp_path):
    (tmp_path / "chairlift").mkdir()
    [violation] = check_stubs(tmp_path)
    assert "found no" in violation.message
