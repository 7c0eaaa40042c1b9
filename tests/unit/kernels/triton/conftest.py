"""On the CPU, Triton's kernels run in its interpreter; the same tests marked `gpu` compile them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> torch.device:
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a GPU, and only there")
    return torch.device(request.param)


@pytest.fixture(scope="session", params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def dtype(request, device) -> torch.dtype:
    if device.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("the interpreter cannot multiply matrices of bfloat16")
    return request.param


@pytest.fixture(scope="session")
def exact_dtype(dtype, device) -> torch.dtype:
    """For tests of bits: in the interpreter, which is slow, other types would show nothing more."""
    if device.type == "cpu" and dtype != torch.float32:
        pytest.skip("on the CPU one type is enough")
    return dtype


@pytest.fixture(scope="session")
def tolerance(dtype) -> dict[str, float]:
    step = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    return {"rtol": step, "atol": step}
