"""One rank of a group dies or hangs, on real Ray: nobody notices, and nothing of it is left."""

import pytest

from chairlift.evaluation.drill_rank import RankSettings, run
from support.drills import broken
from support.rank_replicas import needs_shared_memory

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400), needs_shared_memory]


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_changes_no_answer(blow: str) -> None:
    report = run(RankSettings(blow=blow, requests=40))
    assert broken(report) == []
    (moved,) = [claim for claim in report.claims if "that moved" in claim.text]
    (gone,) = [claim for claim in report.claims if "last process" in claim.text]
    assert moved.holds
    assert gone.measured is not None, "a process of the group lives on"
