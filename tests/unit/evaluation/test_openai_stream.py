from __future__ import annotations

import pytest

from chairlift.evaluation.openai_stream import api_base


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_an_address_may_leave_out_the_version(url: str) -> None:
    assert api_base(url) == "http://a:1/v1"


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        api_base(url)
