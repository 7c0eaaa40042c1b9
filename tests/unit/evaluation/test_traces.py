from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.evaluation.lengths import Lengths
from chairlift.evaluation.traces import Arrival, read_trace, scale_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.9799600,110,27
"""
ARENA = """arrival_s,client,prompt_tokens,output_tokens
0.5000,13,13,199
0.7500,2,36,137
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 40, "output_length": 6, "hash_ids": [0]}
{"timestamp": 1500, "input_length": 30, "output_length": 0, "hash_ids": []}
"""


def read(tmp_path: Path, text: str) -> list[Arrival]:
    file = tmp_path / "trace"
    file.write_text(text)
    return read_trace(file)


def test_azure_rows_are_ordered_by_time_and_count_from_the_first(tmp_path: Path) -> None:
    arrivals = read(tmp_path, AZURE)
    assert [each.lengths for each in arrivals] == [
        Lengths(4808, 10), Lengths(3180, 8), Lengths(110, 27)
    ]  # fmt: skip
    assert [each.at_s for each in arrivals] == pytest.approx([0.0, 0.052, 2.0], abs=1e-6)


def test_arena_rows(tmp_path: Path) -> None:
    assert read(tmp_path, ARENA) == [
        Arrival(0.0, Lengths(13, 199), "13"), Arrival(0.25, Lengths(36, 137), "2")
    ]  # fmt: skip


def test_burst_gpt_rows_without_those_that_failed(tmp_path: Path) -> None:
    text = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
47,GPT-4,417,276,693,API log
"""
    assert read(tmp_path, text) == [
        Arrival(0.0, Lengths(472, 18)), Arrival(42.0, Lengths(417, 276))
    ]  # fmt: skip


def test_mooncake_lines_are_in_milliseconds_and_ask_for_at_least_one_token(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE) == [
        Arrival(0.0, Lengths(40, 6), blocks=(0,)), Arrival(0.5, Lengths(30, 1))
    ]  # fmt: skip


def test_scaling_multiplies_lengths_and_times() -> None:
    scaled = scale_trace([Arrival(8.0, Lengths(100, 3))], lengths=0.1, time=0.5)
    assert scaled == [Arrival(4.0, Lengths(10, 1))]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no requests"),
        ("a,b\n1,2\n", "unknown columns a, b"),
        (AZURE + "2023-11-16 18:17:09,many,3\n", "request 4: invalid literal"),
        (AZURE + "yesterday,1,3\n", "request 4"),
        (AZURE + "2023-11-16 18:17:09\n", "request 4"),
        ('{"timestamp": 1, "input_length": 2}\n', "request 1: no field 'output_length'"),
        ('{"timestamp": 1,\n', "request 1"),
    ],
)
def test_a_broken_trace_names_file_and_request(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="trace") as caught:
        read(tmp_path, text)
    assert complaint in str(caught.value)


def test_a_missing_trace_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the trace"):
        read_trace(tmp_path / "none")
