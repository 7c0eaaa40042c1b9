from __future__ import annotations

import json
import random
from importlib.resources import files
from statistics import fmean, median

import pytest

from chairlift.evaluation.lengths import (
    Lengths,
    fitted_names,
    interpolate,
    load_table,
    parse_lengths,
)


def drawn(prompt: str, output: str, number: int = 4000) -> list[Lengths]:
    source, rng = parse_lengths(prompt, output), random.Random(1)
    return [source.draw(rng) for _ in range(number)]


def test_constant_is_always_the_same() -> None:
    assert set(drawn("constant:64", "constant:3")) == {Lengths(64, 3)}


def test_uniform_reaches_both_ends_and_nothing_beyond() -> None:
    assert {each.prompt for each in drawn("uniform:3,6", "constant:1")} == {3, 4, 5, 6}


def test_lognormal_has_its_median_and_stays_within_its_bounds() -> None:
    prompts = [
        each.prompt for each in drawn("lognormal:median=96,sigma=0.8,min=16,max=512", "constant:1")
    ]
    assert (min(prompts), max(prompts)) == (16, 512)
    assert median(prompts) == pytest.approx(96, rel=0.05)


def test_equal_seeds_draw_equal_lengths() -> None:
    spec = "quantiles:azure_code"
    assert drawn(spec, spec, 50) == drawn(spec, spec, 50)


@pytest.mark.parametrize("name", ["azure_code", "azure_conv"])
def test_a_shipped_table_has_the_means_that_its_file_gives(name: str) -> None:
    text = files("chairlift.evaluation").joinpath(f"lengths_{name}.json").read_text()
    fields = json.loads(text)
    lengths = drawn(f"quantiles:{name}", f"quantiles:{name}", 40_000)
    assert fmean(each.prompt for each in lengths) == pytest.approx(fields["mean_prompt"], rel=0.03)
    assert fmean(each.output for each in lengths) == pytest.approx(fields["mean_output"], rel=0.05)
    assert fields["licence"] == "CC-BY-4.0"
    assert "Splitwise" in fields["source"]


def test_every_shipped_table_is_rising() -> None:
    for name in fitted_names():
        table = load_table(name)
        for levels, rows in (
            (table.prompt_levels, [table.prompt]),
            (table.output_levels, table.output),
        ):
            assert levels[0] == 0.0 and levels[-1] == 1.0
            assert list(levels) == sorted(set(levels))
            for row in rows:
                assert len(row) == len(levels) and list(row) == sorted(row)


def test_outputs_keep_their_dependence_on_the_prompt() -> None:
    """In azure_conv middling prompts have the longest answers; drawn apart they would not."""
    lengths = sorted(
        drawn("quantiles:azure_conv", "quantiles:azure_conv", 20_000), key=lambda each: each.prompt
    )
    middle, longest = lengths[10_000:12_500], lengths[-2_500:]
    assert fmean(each.output for each in middle) > 3 * fmean(each.output for each in longest)


def test_a_fitted_table_is_scaled_before_it_is_bounded() -> None:
    plain = drawn("constant:1", "quantiles:azure_code", 500)
    scaled = drawn("constant:1", "quantiles:azure_code,scale=2,min=20,max=50", 500)
    for one, other in zip(plain, scaled, strict=True):
        assert other.output == pytest.approx(min(max(2 * one.output, 20), 50), abs=1)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("64", "expected constant"),
        ("constant:", "no number"),
        ("constant:0", "not above 0"),
        ("constant:inf", "not above 0"),
        ("constant:1,2", "constant:LENGTH"),
        ("uniform:5", "LEAST,GREATEST"),
        ("uniform:5,2", "smaller one first"),
        ("uniform:1.5,2", "whole numbers"),
        ("lognormal:median=5", "needs median and sigma"),
        ("lognormal:median=5,sigma=1,mean=3", "unknown setting 'mean=3'"),
        ("lognormal:median=5,sigma=1,min=9,max=3", "min is greater"),
        ("quantiles:nothing", "no fitted table 'nothing'; there are azure_code, azure_conv"),
        ("quantiles:azure_code,scale", "unknown setting 'scale'"),
    ],
)
def test_a_wrong_text_is_refused_with_its_reason(spec: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="output lengths") as caught:
        parse_lengths("constant:1", spec)
    assert complaint in str(caught.value)


def test_interpolation_follows_straight_lines() -> None:
    assert interpolate([0.0, 0.5, 1.0], [10.0, 20.0, 100.0], 0.25) == 15.0
    assert interpolate([0.0, 0.5, 1.0], [10.0, 20.0, 100.0], 0.75) == 60.0
    assert interpolate([0.0, 0.5, 1.0], [10.0, 20.0, 100.0], 1.0) == 100.0
