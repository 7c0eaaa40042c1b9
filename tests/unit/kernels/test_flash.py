"""FlashAttention's packages are not installed here; functions with their signatures stand in."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.kernels.flash import (
    Flash,
    Gpu,
    Needs,
    NoFlash,
    Scoring,
    describe,
    find_flash,
)
from support import flash_reference

CPU = torch.device("cpu")
HOPPER = Gpu(CPU, (9, 0))
NEEDS = Needs(4, 2, 16, torch.bfloat16, 16, (Scoring(0.25),), exact=False)
NAMES = {
    "flash_attn_interface": "FlashAttention 3",
    "flash_attn.cute": "FlashAttention 4",
    "vllm.vllm_flash_attn": "FlashAttention 3 of vLLM",
    "vllm_flash_attn": "vllm-flash-attn",
    "flash_attn": "flash-attn",
}
real = flash_reference.vllm_flash_attn_varlen


def install(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    name, function = flash_reference.FUNCTIONS[module]
    flash_reference.install(monkeypatch, module, **{name: function})


def install_vllm_flash_attn(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any] = real
) -> None:
    flash_reference.install(monkeypatch, "vllm_flash_attn", flash_attn_varlen_func=function)


def found(needs: Needs = NEEDS, gpu: Gpu | None = HOPPER) -> Flash:
    flash = find_flash(needs, gpu)
    assert isinstance(flash, Flash), flash
    return flash


def reason(package: str, needs: Needs = NEEDS, gpu: Gpu | None = HOPPER) -> str:
    nothing = find_flash(needs, gpu)
    assert isinstance(nothing, NoFlash), nothing
    return {each.package: each.reason for each in nothing.refusals}[package]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("module", flash_reference.FUNCTIONS)
def test_every_package_is_called_so_that_it_computes_the_attention_of_a_mixed_batch(
    monkeypatch: pytest.MonkeyPatch, module: str, seed: int
) -> None:
    install(monkeypatch, module)
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 3])
    scoring = Scoring(
        draw.uniform(0.1, 0.5),
        window=draw.choice([None, 1, 5, 40]),
        soft_cap=draw.choice([None, 2.0, 30.0]),
    )
    needs = Needs(
        kv_heads * draw.choice([1, 2, 5]),
        kv_heads,
        draw.choice([8, 24, 64]),
        draw.choice([torch.float16, torch.bfloat16]),
        256 if module == "flash_attn" else draw.choice([16, 48]),
        (scoring,),
        exact=False,
    )
    flash = found(needs)
    assert flash.package.startswith(NAMES[module])
    steps = [(context := draw.randint(1, 90), draw.choice([1, 1, context])) for _ in range(4)]
    steps.append((70, 7))
    actual, expected = flash_reference.attend(flash, needs, steps, seed)
    torch.testing.assert_close(actual, expected, rtol=0.01, atol=0.01)


def test_a_batch_of_single_rows_is_never_announced_as_one_where_bits_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one row everywhere, packages split along the keys by how many sequences there are."""

    def splitting(*, max_seqlen_q: int, out: Tensor, **arguments: Any) -> Tensor:
        real(max_seqlen_q=max_seqlen_q, out=out, **arguments)
        return out.add_(len(out) * 2**-7) if max_seqlen_q == 1 else out

    install_vllm_flash_attn(monkeypatch, splitting)
    flash = found(replace(NEEDS, exact=True))
    assert flash.exact
    actual, expected = flash_reference.attend(flash, NEEDS, [(20, 1), (3, 1)], 1)
    torch.testing.assert_close(actual, expected, rtol=0.01, atol=0.01)


def test_bits_that_depend_on_the_batch_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def dependent(*, out: Tensor, **arguments: Any) -> Tensor:
        real(out=out, **arguments)
        return out.mul_(1 + 2**-7 * (len(out) > 10))

    install_vllm_flash_attn(monkeypatch, dependent)
    assert "other bits" in reason("vllm-flash-attn", replace(NEEDS, exact=True))
    assert not found().exact


def test_a_package_that_returns_its_result_elsewhere_still_fills_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def elsewhere(*, out: Tensor, **arguments: Any) -> Tensor:
        return real(**arguments)

    install_vllm_flash_attn(monkeypatch, elsewhere)
    actual, expected = flash_reference.attend(found(), NEEDS, [(30, 3)], 2)
    torch.testing.assert_close(actual, expected, rtol=0.01, atol=0.01)


def test_the_better_packages_are_named_with_what_spoke_against_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "vllm_flash_attn")
    flash = found()
    assert {each.package: each.reason for each in flash.refusals} == {
        "FlashAttention 3": "not installed",
        "FlashAttention 4": "not installed",
        "FlashAttention 3 of vLLM": "not installed",
        "FlashAttention 2 of vLLM": "not installed",
    }


@pytest.mark.parametrize(
    ("module", "changes", "words"),
    [
        ("vllm_flash_attn", {"dtype": torch.float32}, "not in float32"),
        ("vllm_flash_attn", {"head_dim": 20}, "not of 20"),
        ("vllm_flash_attn", {"head_dim": 264}, "not of 264"),
        ("vllm_flash_attn", {"block_size": 24}, "multiple of 16 positions, not of 24"),
        ("flash_attn", {}, "multiple of 256 positions, not of 16"),
        ("flash_attn.cute", {"exact": True}, "follow from the longest query and context"),
        (
            "flash_attn_interface",
            {"exact": True, "scorings": (Scoring(1.0, window=64),)},
            "with a sliding window",
        ),
        ("flash_attn_interface", {"exact": True, "block_size": 64}, "blocks of 64"),
    ],
)
def test_what_a_package_cannot_do_is_said(
    monkeypatch: pytest.MonkeyPatch, module: str, changes: dict[str, Any], words: str
) -> None:
    install(monkeypatch, module)
    assert words in reason(NAMES[module], replace(NEEDS, **changes))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (None, "torch sees no GPU"),
        (Gpu(CPU, (7, 5)), "compute capability 8.x, 9.x, and this GPU has 7.5"),
    ],
)
def test_a_gpu_that_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu | None, words: str
) -> None:
    install(monkeypatch, "vllm_flash_attn")
    assert words in reason("vllm-flash-attn", gpu=gpu)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('x.so: undefined symbol: _ZN3c105')", "undefined symbol: _ZN3c105"),
        ("raise OSError('libcudart.so.12: no such file')", "cannot be imported: libcudart"),
        ("raise RuntimeError('no CUDA\\nand more')", "cannot be imported: no CUDA"),
        ("raise KeyError", "cannot be imported: KeyError"),
        ("import a_package_that_is_nowhere", "No module named 'a_package_that_is_nowhere'"),
        ("", "has no flash_attn_varlen_func"),
        ("def flash_attn_varlen_func(q, k, v): ...", "is another one: got an unexpected"),
        ("def flash_attn_varlen_func(**_): raise RuntimeError('no kernel image')", "no kernel"),
        ("def flash_attn_varlen_func(*, out, **_): return out.zero_()", "other results"),
    ],
)
def test_a_broken_package_is_a_reason_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "vllm_flash_attn.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm_flash_attn", raising=False)
    try:
        assert words in reason("vllm-flash-attn")
    finally:
        sys.modules.pop("vllm_flash_attn", None)


def test_a_package_for_another_torch_is_not_even_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm_flash_attn.py").write_text("raise SystemExit('imported')")
    info = tmp_path / "vllm_flash_attn-2.6.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm-flash-attn\nVersion: 2.6.2\n"
        "Requires-Dist: torch ==1.2.3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    running = torch.__version__.split("+")[0]
    assert reason("vllm-flash-attn") == (
        f"it is built for torch 1.2.3, and this is torch {running}"
    )


def test_the_copy_inside_vllm_is_asked_for_its_second_version_where_the_third_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def second_only(**arguments: Any) -> Tensor:
        if arguments["fa_version"] != 2:
            raise ValueError("Unsupported FA version: 3")
        return flash_reference.vllm_copy_varlen(**arguments)

    flash_reference.install(
        monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=partial(second_only)
    )
    flash = found()
    assert flash.package == "FlashAttention 2 of vLLM"
    assert flash.refusals[-1].reason == "a trial failed: Unsupported FA version: 3"


def test_a_report_without_gpu_has_a_reason_for_every_package() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    report = describe(exact=True, block_size=16)
    assert report["package"] is None
    assert [name for name, _ in report["refusals"]] == [
        "FlashAttention 3",
        "FlashAttention 4",
        "FlashAttention 3 of vLLM",
        "FlashAttention 2 of vLLM",
        "vllm-flash-attn",
        "flash-attn",
    ]
