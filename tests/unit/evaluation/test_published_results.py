"""What is published can be computed again, with the code as it now is, from the runs beside it."""

from pathlib import Path

import pytest

from chairlift.evaluation.study_files import changes
from chairlift.evaluation.study_store import ResultFolder
from chairlift.evaluation.study_summary import find

RESULTS = sorted((Path(__file__).parents[3] / "docs/evaluation/results").iterdir())


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_published_judgement_follows_from_its_runs(folder: Path) -> None:
    store = ResultFolder(folder)
    result = store.read()
    assert result.judgement is not None
    assert result.judgement["files"] == store.hashes()
    again = find(result.plan, result.runs).as_tree()
    for name in ("judgement", "measures"):
        assert changes(result.judgement[name], again[name]) == []
