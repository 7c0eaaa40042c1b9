"""What holds for all tests: they share their cores with other work, and must not mind.

- One compute thread for models in the tests' own process: torch's threads wait for each other by
  spinning, and on busy cores two of them took twenty times as long as one.
- No time limits of Hypothesis: how long an example takes says nothing about what is tested.
- Without a GPU, Triton's kernels run in its interpreter. Triton asks for that when it is first
  imported, and some library of a test may be the first to do so.
"""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("busy")

if not torch.cuda.is_available():
    pytest.MonkeyPatch().setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    torch.set_num_threads(1)
